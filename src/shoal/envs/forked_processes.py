"""The owner's side of a fork server: start a process, end it, hear of its death."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil
from time import monotonic

from shoal.envs.fork_server import Folder
from shoal.machine.processes import allow_open_files
from shoal.machine.slots import held_descriptors

START = """
import os, sys
os.setpgid(0, 0)  # Ctrl-C at a terminal is for the owner
sys.path[:] = sys.argv[3:]
from shoal.envs.fork_server import main
main(int(sys.argv[1]), sys.argv[2])
"""
LAST_GRACE_S = 3.0
MOST_SELECTED = 1024  # the descriptors that `select` knows


@dataclass(frozen=True)
class Death:
    """How a process ended."""

    status: int  # its exit code, or the signal that killed it as a negative number
    output: str  # the last of what it printed
    memory: int | None = None  # bytes, if it was killed for having taken them
    disk: int | None = None  # bytes, if it was killed for having written them

    @property
    def words(self) -> str:
        """What ended it."""
        if self.status >= 0:
            return f"ended by itself with exit code {self.status}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"was killed by signal {-self.status}"


class ForkedProcesses:
    """A fork server, and the processes that it has forked.

    `serving` is the module whose `serve` they run, with the descriptors that they were started with.
    """

    def __init__(self, serving: str, environ: Mapping[str, str]) -> None:
        self._last_id = 0
        self._alive: set[int] = set()
        self._deaths: dict[int, Death] = {}
        self.is_broken = False
        allow_open_files()  # each process takes some
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), serving, *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *held_descriptors()],  # slots are free when all on them have ended
                env=environ,
            )
        self.control.setblocking(False)

    def close(self) -> None:
        """End the server with all its processes."""
        self.control.close()
        try:
            self._server.wait(LAST_GRACE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def fork(
        self, descriptors: Sequence[int], memory_limit: int | None = None, folder: Folder | None = None
    ) -> tuple[int, socket.socket]:
        """Start a process that serves a socket and these descriptors: its number here, and our end of the socket."""
        self._last_id += 1
        mine, theirs = socket.socketpair()
        with theirs:
            message = {
                "fork": self._last_id,
                "memory": memory_limit,
                "folder": None if folder is None else asdict(folder),
            }
            self._send(json.dumps(message).encode(), [theirs.fileno(), *descriptors])
        self._alive.add(self._last_id)
        if self.is_broken:
            self._break()
        return self._last_id, mine

    def end(self, id: int, stack: bool = False) -> None:
        """Kill a process with all that is below it, after it has written down its stack if that is wanted."""
        self._send(json.dumps({"end": id, "stack": stack}).encode())

    def import_for_all(self, module: str) -> None:
        """Have a module imported that later processes need."""
        self._send(json.dumps({"import": module}).encode())

    def death(self, id: int) -> Death | None:
        """How a process has ended, if it has; it is reported once."""
        self._read_deaths()
        return self._deaths.pop(id, None)

    def deaths(self) -> dict[int, Death]:
        """How processes have ended, by their numbers; each is reported once."""
        self._read_deaths()
        found, self._deaths = self._deaths, {}
        return found

    def awaited_death(self, id: int) -> Death | None:
        """How a process has ended, if it does within some seconds."""
        until = monotonic() + LAST_GRACE_S
        while (left := until - monotonic()) > 0:
            death = self.death(id)
            if death is not None or self.is_broken:
                return death
            readable([self.control.fileno()], left)
        return None

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
            self._deaths[id] = Death(-9, "the process that watches over the others was killed")
        self._alive.clear()


def readable(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Which of these can be read, within some seconds."""
    if max(descriptors) < MOST_SELECTED:
        return set(select.select(descriptors, [], [], timeout_s)[0])
    polled = select.poll()
    for descriptor in descriptors:
        polled.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in polled.poll(ceil(timeout_s * 1000))}
