"""How a rank becomes an agent: it finds the head's notice in the job's folder or on its standard input."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shoal.cluster.agent import HostAgent, found_head, hello
from shoal.cluster.exit_codes import HEAD_FAILED
from shoal.cluster.job_folder import Notice, notice_of

T = TypeVar("T")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


async def run_agent(
    look: Callable[[], Notice | None],
    environ: Mapping[str, str],
    timeout_s: float,
    rank: int | None = None,
    folder: Path | None = None,
    is_joining: bool = False,
    ends: asyncio.Event | None = None,
    num_cpus: int | None = None,
) -> int:
    """Be an agent until the head ends it, or `ends` is set; the exit code of this rank."""
    found = await _unless_ended(found_head(look, timeout_s), ends)
    if found is None:
        return HEAD_FAILED
    peer, reached, notice = found
    peer.send("hello", **hello(environ, rank, reached, is_joining, num_cpus))
    agent = HostAgent(peer, notice.ray_token, environ, folder)
    asked: list[int] = []

    def heard(number: int) -> None:
        # A scheduler that ends a job tells everybody, but the command on the head wants its workers until it has saved.
        asked.append(number)
        if is_joining or len(asked) > 1:
            agent.leave(drains=is_joining)

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, heard, number)
    waiting = asyncio.create_task(_leave_at(ends, agent, is_joining)) if ends is not None else None
    try:
        return await agent.run()
    finally:
        if waiting is not None:
            waiting.cancel()


async def run_agent_by_pipe(
    environ: Mapping[str, str], timeout_s: float, rank: int | None, is_joining: bool, num_cpus: int | None = None
) -> int:
    """Be an agent whose starter writes the notice to its standard input, and closes that to end it."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if not line:  # the starter is gone already
        return HEAD_FAILED
    notice = notice_of(line.decode())
    ends = asyncio.Event()

    async def watch() -> None:
        await reader.read()
        ends.set()

    watching = asyncio.create_task(watch())
    try:
        return await run_agent(lambda: notice, environ, timeout_s, rank, None, is_joining, ends, num_cpus)
    finally:
        watching.cancel()


async def _unless_ended(work: Coroutine[Any, Any, T], ends: asyncio.Event | None) -> T | None:
    """What the work comes to; None if it is to end before."""
    working = asyncio.create_task(work)
    ending = asyncio.create_task((ends or asyncio.Event()).wait())
    await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if working.done():
        return working.result()
    working.cancel()
    return None


async def _leave_at(ends: asyncio.Event, agent: HostAgent, is_joining: bool) -> None:
    await ends.wait()
    agent.leave(drains=is_joining)
