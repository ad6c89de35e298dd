"""Agents as the head starts, finds and ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from shoal.cluster import agent_processes, launching
from shoal.cluster.agent import found_head
from shoal.cluster.agent_processes import AgentProcesses
from shoal.cluster.control_connection import Peer, accepted
from shoal.cluster.head import HostState
from shoal.cluster.job_folder import Notice

DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(1000)
"""


def test_one_that_does_not_end_is_made_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent_processes, "ENDING_S", 0.2)

    async def body() -> list[int]:
        agents = AgentProcesses(lambda *_: None)
        for host in ("n1", "n2"):
            await agents.start([sys.executable, "-c", DEAF, str(tmp_path / host)], host, None, os.environ)
        while len(list(tmp_path.iterdir())) < 2:
            await asyncio.sleep(0.01)
        await agents.stop()
        return await agents.wait()

    assert asyncio.run(body()) == [-signal.SIGKILL] * 2


def test_of_several_addresses_that_answer_one_is_kept() -> None:
    async def body() -> None:
        seen: asyncio.Queue[Peer | None] = asyncio.Queue()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.put_nowait(await accepted(reader, writer, "s"))

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        notice = Notice(("127.0.0.1",) * 3, server.sockets[0].getsockname()[1], "s")
        peer, _, _ = await found_head(lambda: notice, 10.0)
        peer.send("hello")
        heard = []
        for _ in range(3):
            caller = await seen.get()
            heard.append(None if caller is None else await caller.receive())
        assert sorted(heard, key=str) == [None, None, {"kind": "hello"}]
        await peer.close()
        server.close()

    asyncio.run(body())


def test_a_signal_in_the_very_moment_of_success_is_heard_later() -> None:
    async def body() -> None:
        signals: asyncio.Queue[int] = asyncio.Queue()

        async def bring_up() -> HostState:
            signals.put_nowait(signal.SIGTERM)
            await asyncio.sleep(0)
            return HostState("n1")

        found = await launching._unless_signalled(bring_up(), signals)
        assert isinstance(found, HostState) or found == signal.SIGTERM
        if isinstance(found, HostState):
            assert signals.get_nowait() == signal.SIGTERM

    asyncio.run(body())
