"""The processes below this one: what they hold, and their sudden death. Only the standard library, for every peer."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter


def below(root: int) -> dict[int, str]:
    """Every process that comes from `root`, by its id, with its command line; `root` itself is the first."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return {pid: _read(pid, "cmdline").replace("\0", " ").strip() for pid in found}


def pss_mb(pid: int) -> float:
    """A process's memory, with its share of what several of them map."""
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def cpu_s(pid: int) -> float:
    """The processor time of all living threads of a process; finer than the ticks of /proc/PID/stat."""
    spent = [_read(pid, f"task/{thread.name}/schedstat") for thread in _threads(pid)]
    return sum(int(each.split()[0]) for each in spent if each) / 1e9


@contextmanager
def kill_one_of(is_meant: Callable[[int, str], bool], every_s: float) -> Iterator[list[float]]:
    """As long as it lasts, `kill -9` of one process that is meant every so often; yields the times of the kills.

    `is_meant` is given a process's id and command line.
    """
    over = threading.Event()
    kills: list[float] = []
    chance = random.Random(0)

    def strike() -> None:
        while not over.wait(every_s):
            alive = [pid for pid, command in below(os.getpid()).items() if is_meant(pid, command)]
            if alive:
                os.kill(chance.choice(alive), signal.SIGKILL)
                kills.append(perf_counter())

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended meanwhile
        return []


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it has ended meanwhile
        return ""
