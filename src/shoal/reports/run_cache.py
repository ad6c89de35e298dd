"""What was read of runs before, kept beside them: what has not changed since, by size and time of change, is not read.

The file may be deleted at any time; where it cannot be written, all is read every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from shoal.runs.atomic_files import replace_file

CACHE_FILE = ".shoal_runs.json"
SETTINGS_CACHE_FILE = ".shoal_settings.json"  # by itself: only conditions and orders by settings need it
CACHE_FORMAT = 2

Value = TypeVar("Value")


class RunCache:
    """What is known of the runs of a folder; of none without a folder."""

    def __init__(self, folder: Path | None = None, name: str = CACHE_FILE) -> None:
        self._path = None if folder is None else folder / name
        self._before: dict[str, Any] = {}
        self._now: dict[str, dict[str, Any]] = {}
        if self._path is not None:
            with suppress(OSError, ValueError, RecursionError, AttributeError):
                kept = json.loads(self._path.read_bytes())
                if kept.get("format") == CACHE_FORMAT and isinstance(kept.get("runs"), dict):
                    self._before = kept["runs"]

    def value(
        self,
        run: Path,
        what: str,
        stamp: Sequence[int],
        read: Callable[[], Value],
        plain: Callable[[Value], Any],
        again: Callable[[Any], Value],
    ) -> Value:
        """What `read` returns, or what it did when the stamp was the same; `plain` makes JSON of it, `again` undoes it.

        `again` raises a TypeError, KeyError or ValueError for what is of somebody else's making.
        """
        with suppress(TypeError, KeyError, ValueError, AttributeError):
            kept_stamp, kept = self._before[str(run)][what]
            if kept_stamp == list(stamp):
                value = again(kept)
                self._now.setdefault(str(run), {})[what] = [kept_stamp, kept]
                return value
        value = read()
        self._now.setdefault(str(run), {})[what] = [list(stamp), plain(value)]
        return value

    def keep(self) -> None:
        """Write down what is known now, if anything changed."""
        if self._path is not None and self._now != self._before:
            with suppress(OSError):
                replace_file(self._path, json.dumps({"format": CACHE_FORMAT, "runs": self._now}).encode())
