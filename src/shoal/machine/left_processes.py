"""What a command's simulators have started in its own process and left running: found and ended with the command.

A process that is still below us is found there. A daemon, whose parent has ended, is below nobody, but has our mark
among its variables. We do not become the parent of such (Linux's subreaper): a simulator that waits until its daemon is
gone would see a dead process, which only its parent can bury, for ever.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from shoal.machine.processes import below, children_of_all, process_name

VARIABLE = "SHOAL_COMMAND"
ENDING_S = 0.3  # for what ends by itself at this moment
GRACE_S = 3.0
LAST_GRACE_S = 2.0
POLL_S = 0.02

_spared: set[int] = set()


def mark_what_is_started() -> None:
    """Give what is started from now on, and whatever that starts, the mark of this process."""
    os.environ[VARIABLE] = f"{os.getpid()}-{os.urandom(8).hex()}"


def spare(pid: int) -> None:
    """Leave one alone that ends with this process by itself, and cleans up after it."""
    _spared.add(pid)


def left_processes() -> list[int]:
    """The pids that are below this process, or have its mark; without those that Python itself needs until its end."""
    found = {*below([os.getpid()], children_of_all()), *_with_mark(f"{VARIABLE}={os.environ[VARIABLE]}".encode())}
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return sorted(found - _spared - {os.getpid(), getattr(tracker, "_pid", None)})


def end_left_processes(grace_s: float = GRACE_S, ending_s: float = ENDING_S) -> list[str]:
    """Ask all of them to end, then make them; the names of those that had to be asked. Not in a fork of the marked."""
    if not os.environ.get(VARIABLE, "").startswith(f"{os.getpid()}-"):
        return []
    until = monotonic() + ending_s
    while (left := left_processes()) and monotonic() < until:
        sleep(POLL_S)
    asked: dict[int, str] = {}
    until = monotonic() + grace_s
    while left:
        number = signal.SIGTERM if monotonic() < until else signal.SIGKILL
        for pid in left:
            if number == signal.SIGKILL or pid not in asked:
                asked.setdefault(pid, process_name(pid))
                with suppress(OSError):
                    os.kill(pid, number)
        if monotonic() > until + LAST_GRACE_S:
            break  # a process that even SIGKILL cannot end waits for a disk or a device
        sleep(POLL_S)
        left = left_processes()
    return [name for name in asked.values() if name]


def _with_mark(entry: bytes) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if entry in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.add(int(name))
    return found
