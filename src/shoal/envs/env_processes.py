"""The worker's side of its fork server: start a process for an environment, end it, hear of its death."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import ClassVar

from shoal.envs.fork_server import Folder
from shoal.errors import ConfigError
from shoal.machine.slots import held_descriptors

START = """
import os, sys
os.setpgid(0, 0)  # Ctrl-C at a terminal is for the worker
sys.path[:] = sys.argv[2:]
from shoal.envs.fork_server import main
main(int(sys.argv[1]))
"""
LAST_GRACE_S = 3.0


@dataclass(frozen=True)
class Death:
    """How a process ended."""

    status: int  # its exit code, or the signal that killed it as a negative number
    output: str  # the last of what it printed
    memory: int | None = None  # bytes, if it was killed for having taken them
    disk: int | None = None  # bytes, if it was killed for having written them


class EnvProcesses:
    """The fork server of this process, for as long as any vector uses it."""

    _instance: ClassVar[EnvProcesses | None] = None

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise ConfigError("config.env_isolation: environments in processes of their own need Linux")
        self._users = 0
        self._last_id = 0
        self._alive: set[int] = set()
        self._deaths: dict[int, Death] = {}
        self.is_broken = False
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each environment takes some descriptors
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = dict(os.environ)
        if not environ.get("OPENBLAS_NUM_THREADS"):
            # Each environment has a core at best; as many threads as cores in each would fight for them.
            environ |= {"OPENBLAS_NUM_THREADS": "1", "SHOAL_ONE_BLAS_THREAD": "1"}
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *held_descriptors()],  # slots are free when all on them have ended
                env=environ,
            )
        self.control.setblocking(False)

    @classmethod
    def use(cls) -> EnvProcesses:
        """The one of this process; who uses it calls `release` in the end."""
        found = cls._instance
        if found is None or found.is_broken:
            found = cls._instance = cls()
        found._users += 1
        return found

    def release(self) -> None:
        """Say that one user less is there; the last one takes the server along."""
        self._users -= 1
        if self._users:
            return
        if EnvProcesses._instance is self:
            EnvProcesses._instance = None
        self.control.close()
        try:
            self._server.wait(LAST_GRACE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def start(
        self, ready: int, memory: int, group: int, memory_limit: int | None, folder: Folder | None = None
    ) -> tuple[int, socket.socket]:
        """Start a process: its number here, and the socket to it.

        `ready` is the pipe for its answers, `memory` the rows that it shares, `group` the semaphore of quiet ones.
        """
        self._last_id += 1
        mine, theirs = socket.socketpair()
        with theirs:
            message = {
                "fork": self._last_id,
                "memory": memory_limit,
                "folder": None if folder is None else asdict(folder),
            }
            self._send(json.dumps(message).encode(), [theirs.fileno(), ready, memory, group])
        self._alive.add(self._last_id)
        if self.is_broken:
            self._break()
        return self._last_id, mine

    def end(self, id: int, stack: bool = False) -> None:
        """Kill a process with all that is below it, after it has written down its stack if that is wanted."""
        self._send(json.dumps({"end": id, "stack": stack}).encode())

    def death(self, id: int) -> Death | None:
        """How a process has ended, if it has; it is reported once."""
        self._read_deaths()
        return self._deaths.pop(id, None)

    def _send(self, message: bytes, descriptors: list[int] | None = None) -> None:
        while True:
            try:
                socket.send_fds(self.control, [message], descriptors or [])
                return
            except BlockingIOError:
                select.select([], [self.control], [], 1.0)
            except OSError:
                self._break()
                return

    def _read_deaths(self) -> None:
        """Take in what the server has reported."""
        while not self.is_broken:
            try:
                data = self.control.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._break()
                return
            report = json.loads(data)
            self._alive.discard(report["died"])
            self._deaths[report["died"]] = Death(report["status"], report["tail"], report["memory"], report["disk"])

    def _break(self) -> None:
        """The server was killed, and with it all processes: the next to start has a new one."""
        self.is_broken = True
        for id in self._alive:
            self._deaths[id] = Death(-9, "the process that watches over the environments was killed")
        self._alive.clear()


@contextmanager
def env_processes() -> Iterator[EnvProcesses]:
    """The fork server of this process, for as long as the block lasts."""
    processes = EnvProcesses.use()
    try:
        yield processes
    finally:
        processes.release()
