"""The runs and sweeps of a folder, looked at again and again: what has not changed is not read again.

Whether a run has changed is told by the times of its folder and the size and time of its results alone: every other
file of a run is replaced or made anew, which changes the folder. Of results that grow, only what is new is read.
Nothing is written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from shoal.reports.followed_run import GrowingFile
from shoal.reports.run_cache import RunCache
from shoal.reports.run_list import (
    UNREADABLE,
    ListedRun,
    Progress,
    described,
    folders_in,
    known_progress,
    may_be_run,
    progress_after,
    size_and_change,
)
from shoal.runs.folders import RESULTS_FILE, SWEEP_FILE
from shoal.runs.lease import LEASE, LeaseWatch

LOOK_S = 2.0  # between two looks
SHARE = 0.02  # of the time that looking may take
LONGEST_S = 15.0  # between two looks where the file system is slow
SIZE_S = 30.0  # between two sums over all files of a run that changes

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Sight:
    """What a look has found, by address: the path from the folder, as an URL has it."""

    runs: Mapping[str, ListedRun] = field(default_factory=dict)
    sweeps: Mapping[str, Path] = field(default_factory=dict)
    damaged: tuple[Path, ...] = ()  # runs whose experiment cannot be read


@dataclass
class _Entry:
    """A run that was seen before."""

    stamp: Stamp | None = None
    is_written: bool = False
    has_lease: bool = False
    run: ListedRun | None = None
    results: GrowingFile | None = None
    progress: Progress = field(default_factory=Progress)
    size: int = 0
    changed: float = 0.0
    sized_at: float = -SIZE_S


class WatchedRuns:
    """All runs below a folder, as often as somebody looks; any thread may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[Path, _Entry] = {}
        self._leases = LeaseWatch()
        self._cache = RunCache(folder)
        self._lock = threading.Lock()
        self._sight = Sight()
        self._due = 0.0

    def look(self) -> Sight:
        """How all stand now, or a moment ago: nobody makes it look more often than is cheap."""
        with self._lock:
            began = time.monotonic()
            if began >= self._due:
                self._sight = self._looked()
                now = time.monotonic()
                self._due = now + min(max(LOOK_S, (now - began) / SHARE), LONGEST_S)
            return self._sight

    def address(self, path: Path) -> str:
        """Where a run or a sweep is, as an URL has it; empty for the folder itself."""
        relative = os.path.relpath(path, self.folder)
        return "" if relative == "." else quote(os.fsencode(relative))

    def _looked(self) -> Sight:
        sweeps: list[Path] = []
        entries = {path: self._entries.get(path) or _Entry() for path in self._folders(sweeps)}
        self._entries = entries
        for path, entry in entries.items():
            try:
                self._refresh(path, entry)
            except UNREADABLE:
                entry.run, entry.stamp = None, None
        runs = {self.address(path): entry.run for path, entry in entries.items() if entry.run is not None}
        damaged = (path for path, entry in entries.items() if entry.run is None and may_be_run(path))
        return Sight(runs, {self.address(path): path for path in sweeps}, tuple(damaged))

    def _refresh(self, path: Path, entry: _Entry) -> None:
        """Read what has changed of a run."""
        folder = os.stat(path, follow_symlinks=False)
        try:
            results = os.stat(f"{path}/{RESULTS_FILE}", follow_symlinks=False)
            stamp = (folder.st_mtime_ns, results.st_mtime_ns, results.st_size)
        except FileNotFoundError:
            stamp = (folder.st_mtime_ns, 0, 0)
        is_new_folder = entry.stamp is None or entry.stamp[0] != stamp[0]
        if is_new_folder:
            entry.has_lease = os.path.lexists(f"{path}/{LEASE}")
        is_written = entry.has_lease and self._leases.is_written(path)
        if entry.stamp == stamp and entry.is_written == is_written:
            return
        if entry.stamp is None:
            entry.progress = known_progress(path, self._cache)
        elif entry.stamp[1:] != stamp[1:]:
            entry.results = entry.results or GrowingFile(path / RESULTS_FILE)
            lines, is_again = entry.results.new_lines()
            entry.progress = progress_after(Progress() if is_again else entry.progress, lines)
        now = time.monotonic()
        if now - entry.sized_at >= SIZE_S or not is_written:
            entry.size, entry.changed = size_and_change(path, self._cache)
            entry.sized_at = now
        changed = max(entry.changed, stamp[0] / 1e9, stamp[1] / 1e9)
        entry.run = described(path, entry.progress, is_written, entry.size, changed, self._cache)
        entry.stamp, entry.is_written = stamp, is_written

    def _folders(self, sweeps: list[Path]) -> Iterator[Path]:
        """The folders of runs: this one, or those one and two levels below; sweeps on the way are put into a list."""
        if self._is_run(self.folder):
            yield self.folder
            return
        if (self.folder / SWEEP_FILE).is_file():
            sweeps.append(self.folder)
        for child in folders_in(self.folder):
            if self._is_run(child):
                yield child
            elif (child / SWEEP_FILE).is_file():
                sweeps.append(child)
            else:
                for inner in folders_in(child):
                    if self._is_run(inner):
                        yield inner
                    elif (inner / SWEEP_FILE).is_file():
                        sweeps.append(inner)

    def _is_run(self, path: Path) -> bool:
        return path in self._entries or may_be_run(path)
