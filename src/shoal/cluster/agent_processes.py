"""The programs that start agents on other hosts (srun, ssh, ...), and the agent beside the head."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shoal.cluster.job_folder import Notice

MOST_LINES = 10
ENDING_S = 2.0


class AgentProcesses:
    """They run as long as their agents; one that fails early is a host that cannot start."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        self._failed = failed  # told the host and the reason
        self._processes: list[asyncio.subprocess.Process] = []
        self._watching: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def start(self, words: Sequence[str], host: str, notice: Notice | None, env: Mapping[str, str]) -> None:
        """Start an agent; its notice goes through a pipe, where nobody else can read it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                env=dict(env),
                stdin=asyncio.subprocess.DEVNULL if notice is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
        except OSError as error:
            self._failed(host, f"{words[0]} cannot be run: {error.strerror}")
            return
        if process.stdin is not None and notice is not None:
            process.stdin.write(notice.to_json().encode() + b"\n")
        self._processes.append(process)
        self._watching.append(asyncio.create_task(self._watch(process, host, words[0])))

    async def wait(self) -> list[int]:
        """The exit codes, once all have ended."""
        return [await process.wait() for process in self._processes]

    async def stop(self) -> None:
        """Let them end, then make them."""
        self._is_stopping = True
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):  # a killed agent's keeper cleans up after it
            await self._wait_after(number)
        for task in self._watching:
            task.cancel()

    async def _wait_after(self, number: int) -> None:
        """Send a signal to those that still run, and give all of them together some time."""
        left = [process for process in self._processes if process.returncode is None]
        for process in left:
            if number:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
        if left:
            await asyncio.wait([asyncio.create_task(process.wait()) for process in left], timeout=ENDING_S)

    def send(self, number: int) -> None:
        """Pass a signal on to those that pass it on to their agents; the others see their pipes close."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
            elif process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    async def _watch(self, process: asyncio.subprocess.Process, host: str, program: str) -> None:
        lines: deque[str] = deque(maxlen=MOST_LINES)
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if text := line.decode(errors="replace").rstrip():
                lines.append(text)
        code = await process.wait()
        if code != 0 and not self._is_stopping:
            self._failed(host, "\n".join(lines) or f"{os.path.basename(program)} ended with code {code}")
