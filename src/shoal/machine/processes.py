"""Processes of this host and how they depend on each other: who is below whom, and what ends with whom."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import sleep

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PARENT_CHECK_S = 1.0


def adopt_orphans() -> None:
    """Become the parent of every process that our descendants leave behind."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Be sent a signal when the parent is killed; for a process that has just been forked."""
    _prctl(PR_SET_PDEATHSIG, number)


def allow_open_files() -> None:
    """Let this process, and those that it starts, have as many open files as it may give itself."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def exit_as_orphan() -> None:
    """End this process soon after its parent has ended, whatever it does at the moment.

    For Ray's workers: where their raylet is killed, they may live on for minutes and work for nobody. The kernel's own
    signal would do, but it comes when the *thread* ends that has started us.
    """

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            sleep(PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, args=(os.getppid(),), name="shoal-orphan", daemon=True).start()


def processes() -> Iterator[tuple[int, int, bool]]:
    """Every process that can be seen: its pid, its parent's, and whether it only waits to be buried."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                state, parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:2]
                yield int(name), int(parent), state == "Z"


def children_of_all() -> dict[int, list[int]]:
    """The living children of every process that has any.

    A process whose first thread has ended looks dead while others of its threads end, and has its children until then.
    """
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for pid, parent, is_dead in processes():
        children.setdefault(parent, []).append(pid)
        if is_dead:
            dead.add(pid)
    gone = dead - children.keys()
    return {parent: [pid for pid in pids if pid not in gone] for parent, pids in children.items()}


def below(roots: Iterable[int], children: dict[int, list[int]]) -> list[int]:
    """The pids below these processes, the oldest first."""
    found: list[int] = []
    todo = list(roots)
    while todo:
        own = children.get(todo.pop(), [])
        found += own
        todo += own
    return sorted(found)


def process_name(pid: int) -> str:
    """The name of a process's program, of which the kernel keeps 15 characters; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "comm").read_text().strip()
    return ""


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process, by SIGSTOP or by Ctrl-Z."""
    with contextlib.suppress(OSError, IndexError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def private_bytes(pid: int) -> int:
    """The memory that a process has for itself; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, resident, shared = Path("/proc", str(pid), "statm").read_text().split()[:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
