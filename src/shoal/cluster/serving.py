"""How a rank becomes an agent: it finds the head's notice in the job's folder or on its standard input."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.cluster.agent import Agent, found_head, hello
from shoal.cluster.job_folder import Notice, notice_of

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


async def serve(
    look: Callable[[], Notice | None],
    environ: Mapping[str, str],
    timeout_s: float,
    rank: int | None = None,
    folder: Path | None = None,
    is_joining: bool = False,
    ends: asyncio.Event | None = None,
) -> int:
    """Be an agent until the head ends it, or `ends` is set; the exit code of this rank."""
    peer, reached, notice = await found_head(look, timeout_s)
    peer.send("hello", **hello(environ, rank, reached, is_joining))
    agent = Agent(peer, notice.ray_token, environ, folder)
    asked: list[int] = []

    def heard(number: int) -> None:
        # A scheduler that ends a job tells everybody, but the command on the head wants its workers until it has saved.
        asked.append(number)
        if is_joining or len(asked) > 1:
            agent.leave()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, heard, number)
    waiting = asyncio.create_task(_leave_at(ends, agent)) if ends is not None else None
    try:
        return await agent.run()
    finally:
        if waiting is not None:
            waiting.cancel()


async def serve_by_pipe(environ: Mapping[str, str], timeout_s: float, rank: int | None, is_joining: bool) -> int:
    """Be an agent whose starter writes the notice to its standard input, and closes that to end it."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    notice = notice_of((await reader.readline()).decode())
    ends = asyncio.Event()

    async def watch() -> None:
        await reader.read()
        ends.set()

    watching = asyncio.create_task(watch())
    try:
        return await serve(lambda: notice, environ, timeout_s, rank, None, is_joining, ends)
    finally:
        watching.cancel()


async def _leave_at(ends: asyncio.Event, agent: Agent) -> None:
    await ends.wait()
    agent.leave()
