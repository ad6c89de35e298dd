"""A run that is followed from elsewhere, by its folder alone: what is new in it since the last look.

Files are opened anew at every look, which is when NFS asks its server whether they have changed.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.machine.terminal import printable
from shoal.reports.run_list import RunState, listed
from shoal.runs.bounded_files import open_regular
from shoal.runs.folders import EXPERIMENT_FILE, RESULTS_FILE
from shoal.runs.lease import LeaseWatch
from shoal.runs.outcomes import read_outcome

_TOLD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (WARNING|ERROR|CRITICAL) (.*)$")


class GrowingFile:
    """The whole lines of a file that is appended to; one that was cut back or replaced is read from its start.

    With `tail`, the start is at most so many bytes before its end.
    """

    def __init__(self, path: Path, from_end: bool = False, tail: int | None = None) -> None:
        self._path, self._tail = path, tail
        self._offset, self._inode, self._rest = 0, None, b""
        if from_end:
            self.new_lines()

    _inode: int | None

    def new_lines(self) -> tuple[list[bytes], bool]:
        """The lines that came since the last look, and whether they are the file's first."""
        try:
            with open_regular(self._path) as file:
                status = os.fstat(file.fileno())
                is_fresh = status.st_ino != self._inode or status.st_size < self._offset
                if is_fresh:
                    self._inode, self._rest = status.st_ino, b""
                    self._offset = 0 if self._tail is None else max(status.st_size - self._tail, 0)
                is_cut = is_fresh and self._offset > 0
                file.seek(self._offset)
                piece = file.read()
        except OSError:  # not there yet, being replaced, or the disk is away for a moment
            return [], False
        self._offset += len(piece)
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole[1:] if is_cut else whole, is_fresh


@dataclass(frozen=True)
class Look:
    """What a look has found: results that are new, or with `is_again` all of them, and warnings of the log."""

    results: list[dict[str, Any]]
    is_again: bool
    warnings: list[str]


class FollowedRun:
    """One run, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lease = LeaseWatch()
        self._results = GrowingFile(folder / RESULTS_FILE)
        self._log = GrowingFile(folder / "log.txt", from_end=True)

    def look(self) -> Look:
        """What is new."""
        lines, is_fresh = self._results.new_lines()
        results = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                result = json.loads(line)
                if isinstance(result, dict):
                    results.append(result)
        told = [_TOLD.match(line.decode(errors="replace")) for line in self._log.new_lines()[0]]
        warnings = [f"{found[1].capitalize()}: {printable(found[2])}" for found in told if found]
        return Look(results, is_fresh, warnings)

    @property
    def began(self) -> float:
        """When it was started or continued, in seconds since 1970."""
        try:
            return (self.folder / EXPERIMENT_FILE).stat().st_mtime
        except OSError:
            return time.time()

    @property
    def last_change(self) -> float:
        """When its last result came, or else when it began."""
        try:
            return (self.folder / RESULTS_FILE).stat().st_mtime
        except OSError:
            return self.began

    @property
    def is_written(self) -> bool:
        """Whether somebody trains it now, here or on another host."""
        return self._lease.is_written(self.folder)

    def ending(self) -> tuple[RunState | None, str]:
        """How it stands when nobody trains it, and the sentence that it left, if any; None if the folder is gone."""
        found = listed(self.folder)
        outcome = read_outcome(self.folder)
        return (None if found is None else found.state), (
            "" if outcome is None else printable(outcome.sentence.partition("\n")[0])
        )
