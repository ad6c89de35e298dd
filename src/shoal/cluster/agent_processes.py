"""The programs that start agents on other hosts (srun, ssh, ...), and the agent beside the head."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from shoal.cluster.host_lists import expand
from shoal.cluster.job_folder import Notice
from shoal.errors import ClusterError

MOST_LINES = 10
ENDING_S = 2.0
CLEANING_S = 5.0  # for an agent that was told to end: killed after its keeper has ended, it would leave its folder
CAUSE_S = 0.5  # srun may tell that a task has ended before it tells why


class AgentProcesses:
    """They run as long as their agents; one that fails early is a host that cannot start."""

    def __init__(self, failed: Callable[[str, str], None]) -> None:
        self._failed = failed  # told the host and the reason
        self._processes: list[asyncio.subprocess.Process] = []
        self._watching: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def start(
        self,
        words: Sequence[str],
        host: str,
        notice: Notice | None,
        env: Mapping[str, str],
        failure: str | None = None,
    ) -> None:
        """Start an agent; its notice goes through a pipe, where nobody else can read it.

        A program that starts the agents of many hosts, and lives as long as any of them, tells by a line of the pattern
        `failure` which `hosts` have none any more.
        """
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
        self._watching.append(asyncio.create_task(self._watch(process, host, words[0], failure)))

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
            within_s = CLEANING_S if number == signal.SIGTERM else ENDING_S
            await asyncio.wait([asyncio.create_task(process.wait()) for process in left], timeout=within_s)

    def send(self, number: int) -> None:
        """Pass a signal on to those that pass it on to their agents; the others see their pipes close."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
            elif process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    async def _watch(self, process: asyncio.subprocess.Process, host: str, program: str, failure: str | None) -> None:
        lines: deque[str] = deque(maxlen=MOST_LINES)
        failures: dict[str, str] = {}  # hosts that a line has named, before anybody is told, with that line
        is_told = False
        assert process.stdout is not None
        while (text := await _next_line(process.stdout, CAUSE_S if failures else None)) != "":
            if text is None:
                self._tell(failures, lines)
                failures = {}
                continue
            found = re.match(failure, text) if failure is not None else None
            if found is None:
                lines.append(text)
            else:
                is_told = True
                failures |= dict.fromkeys(_names(found["hosts"]), text)
        self._tell(failures, lines)
        code = await process.wait()
        if code != 0 and not self._is_stopping and not is_told:
            self._failed(host, "\n".join(lines) or f"{os.path.basename(program)} ended with code {code}")

    def _tell(self, failures: Mapping[str, str], lines: Sequence[str]) -> None:
        """Say of hosts that they have no agent: what was told of errors, and then the line that names them."""
        causes = [line for line in lines if "error" in line.lower()]
        for name, line in failures.items():
            if not self._is_stopping:
                self._failed(name, "\n".join([*causes, line]))


async def _next_line(stream: asyncio.StreamReader, within_s: float | None) -> str | None:
    """The next line that says something; empty where there is no more, None where there is none in time."""
    while True:
        try:
            line = await asyncio.wait_for(stream.readline(), within_s)
        except asyncio.TimeoutError:
            return None
        text = line.decode(errors="replace").rstrip()
        if text or not line:
            return text


def _names(hosts: str) -> list[str]:
    """The hosts of a list as a scheduler writes it."""
    try:
        return expand(hosts, "a message")
    except ClusterError:
        return [hosts]
