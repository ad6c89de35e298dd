"""The runs of a results folder, each with its state and its numbers, as far as its folder tells.

What a run has reported is read once: a small file beside the experiments keeps it by the size and the time of change of
the run's `result.json`, so a folder of a thousand runs is listed by looking at its files alone. The file may be
deleted at any time; where it cannot be written, all is read every time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shoal.data.results import flat, number_in, numbers
from shoal.errors import CheckpointError, ConfigError
from shoal.reports.records import RESULTS_FILE
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import bounded_bytes, open_regular
from shoal.runs.checkpoints import LIMITS, checkpoints_of
from shoal.runs.folders import EXPERIMENT_FILE, SWEEP_FILE, env_text
from shoal.runs.lease import holder
from shoal.runs.outcomes import read_outcome
from shoal.runs.stopping import stop_reason

CACHE_FILE = ".shoal_runs.json"
CACHE_FORMAT = 1
RETURN = "episode_reward_mean"

RunState = Literal["running", "finished", "interrupted", "failed", "killed", "new"]
"""`killed`: it ended without a word, by kill -9 or a power failure; `new`: it has no result and nobody writes it."""

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, CheckpointError)
"""What reading a run raises that is half written, removed, or of somebody else's making."""

STATES: dict[str, RunState] = {"stopped": "finished", "interrupted": "interrupted", "failed": "failed"}


@dataclass(frozen=True)
class Progress:
    """What the results of a run say in all."""

    last: dict[str, float] = field(default_factory=dict)  # the numbers of the last result, flat
    best: float | None = None  # the highest mean return of an iteration


@dataclass(frozen=True)
class ListedRun:
    """One run."""

    path: Path
    name: str
    state: RunState
    is_resumable: bool
    algorithm: str
    env: str
    progress: Progress
    changed: float  # seconds since 1970
    size: int  # bytes
    settings: Mapping[str, Any]  # of config, flat

    @property
    def values(self) -> dict[str, Any]:
        """All by which runs are chosen and sorted: results of the last iteration, settings, and what the table has."""
        own = {
            "name": self.name,
            "state": self.state,
            "run": self.algorithm,
            "env": self.env,
            "best": self.progress.best,
            "last": self.progress.last.get(RETURN),
            "steps": self.progress.last.get("timesteps_total"),
            "changed": self.changed,
            "size": self.size,
        }
        known = {name: value for name, value in own.items() if value is not None}
        return {**self.settings, **self.progress.last, **known}

    def to_json(self) -> dict[str, Any]:
        """The run as a program reads it."""
        return {
            "path": str(self.path),
            "name": self.name,
            "state": self.state,
            "resumable": self.is_resumable,
            "run": self.algorithm,
            "env": self.env,
            "best": self.progress.best,
            "last": self.progress.last,
            "changed": self.changed,
            "size_bytes": self.size,
        }


@dataclass(frozen=True)
class RunsBelow:
    """The runs of a folder, the last changed first, and the folders of those whose experiment cannot be read."""

    runs: list[ListedRun]
    damaged: list[Path]


def runs_below(folder: Path) -> RunsBelow:
    """The runs of a results folder or of one experiment; trials of sweeps are left out."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give one that holds runs, such as ~/shoal_results.")
    cache = ProgressCache(folder)
    found = {path: listed(path, cache) for path in _run_folders(folder)}
    cache.keep()
    runs = sorted((run for run in found.values() if run is not None), key=lambda run: -run.changed)
    return RunsBelow(runs, [path for path, run in found.items() if run is None and is_damaged(path)])


def is_damaged(path: Path) -> bool:
    """Whether what could not be read is there still: it was not just removed."""
    return (path / EXPERIMENT_FILE).is_file()


def damaged_text(names: Sequence[str]) -> str:
    """What to say of runs that are not listed because they cannot be read."""
    count = len(names)
    one, which = ("run", names[0]) if count == 1 else ("runs", f"{names[0]} and {count - 1} more")
    return f"{count} more {one} cannot be read, since files are damaged: {which}; shoal verify RUN says which"


def listed(path: Path, cache: ProgressCache | None = None, progress: Progress | None = None) -> ListedRun | None:
    """One run, with `progress` if that is known; None if it cannot be read, or if it has just been removed."""
    try:
        size, changed = size_and_change(path)
        if progress is None:
            progress = (cache or ProgressCache(None)).progress(path / RESULTS_FILE)
        return described(path, progress, holder(path) is not None, size, changed)
    except UNREADABLE:
        return None


def described(path: Path, progress: Progress, is_written: bool, size: int, changed: float) -> ListedRun:
    """One run, of which all is known but what its experiment and its outcome say; one of `UNREADABLE` if that fails."""
    tree = json.loads(bounded_bytes(path / EXPERIMENT_FILE, LIMITS[EXPERIMENT_FILE]))
    config = dict(tree["config"])
    state = "running" if is_written else _state(path, progress, dict(tree.get("stop") or {}))
    return ListedRun(
        path,
        str(tree["name"]),
        state,
        state not in ("running", "finished") and bool(checkpoints_of(path)),
        str(tree["run"]),
        env_text(config.pop("env", "")),
        progress,
        changed,
        size,
        flat(config),
    )


class ProgressCache:
    """What was read of results before, by the size and the time of change of each file."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / CACHE_FILE
        self._before: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        if self._path is not None:
            with suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
                kept = json.loads(self._path.read_bytes())
                if kept.get("format") == CACHE_FORMAT:
                    self._before = {name: _checked(entry) for name, entry in kept["runs"].items()}

    def progress(self, file: Path) -> Progress:
        """What a run's results say; nothing if there are none."""
        try:
            status = file.stat()
        except FileNotFoundError:
            return Progress()
        stamp = [status.st_size, status.st_mtime_ns]
        entry = self._before.get(str(file), {})
        if entry.get("stamp") == stamp:
            found = Progress(entry["last"], entry["best"])
        else:
            found = read_progress(file)
        self._now[str(file)] = {"stamp": stamp, "last": found.last, "best": found.best}
        return found

    def keep(self) -> None:
        """Write down what is known now, if anything changed."""
        if self._path is not None and self._now != self._before:
            with suppress(OSError):
                replace_file(self._path, json.dumps({"format": CACHE_FORMAT, "runs": self._now}).encode())


def _checked(entry: Any) -> dict[str, Any]:
    """An entry that has the form of ours; a TypeError if it is of somebody else's making."""
    best = entry["best"]
    last = {str(name): float(value) for name, value in entry["last"].items()}
    return {"stamp": list(entry["stamp"]), "last": last, "best": None if best is None else float(best)}


def read_progress(file: Path) -> Progress:
    """Read a run's results; a line that is half written is passed over."""
    with open_regular(file) as lines:
        return progress_after(Progress(), lines)


def progress_after(before: Progress, lines: Iterable[bytes]) -> Progress:
    """What the results say when these lines have come too."""
    last, best = None, before.best
    for line in lines:
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(result, dict):
            continue
        last = result
        mean = number_in(result, RETURN)
        if mean is not None and (best is None or mean > best):
            best = mean
    return Progress(before.last if last is None else numbers(last), best)


def _run_folders(folder: Path) -> Iterator[Path]:
    """The folder itself if it is a run, and the runs one and two levels below it."""
    if (folder / EXPERIMENT_FILE).is_file():
        yield folder
        return
    for child in folders_in(folder):
        if (child / EXPERIMENT_FILE).is_file():
            yield child
        elif not (child / SWEEP_FILE).is_file():
            yield from (run for run in folders_in(child) if (run / EXPERIMENT_FILE).is_file())


def folders_in(folder: Path) -> Iterable[Path]:
    """The folders in a folder, without links; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def size_and_change(path: Path) -> tuple[int, float]:
    """The bytes of all files below, and when the newest of them was changed."""
    size, changed = 0, path.stat().st_mtime
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                size += status.st_size
                changed = max(changed, status.st_mtime)
    return size, changed


def _state(path: Path, progress: Progress, stop: Mapping[str, float]) -> RunState:
    """How a run stands that nobody writes."""
    outcome = read_outcome(path)
    if outcome is not None:
        return STATES[outcome.kind]
    if stop_reason(progress.last, stop):  # of a version that wrote no outcome
        return "finished"
    return "killed" if progress.last else "new"
