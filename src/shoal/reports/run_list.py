"""The runs of a results folder, each with its state and its numbers, as far as its folder tells.

What a run is, has reported and has saved is read once and kept beside the experiments (`run_cache.py`), so a thousand
runs are listed by the sizes and times of their files alone. So are settings, when somebody asks for them.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any, Literal

from shoal.data.results import flat, number_in, numbers
from shoal.errors import CheckpointError, ConfigError
from shoal.machine.terminal import printable
from shoal.reports.run_cache import SETTINGS_CACHE_FILE, RunCache
from shoal.runs.bounded_files import MOST_RESULTS_BYTES, bounded_bytes, bounded_lines, open_regular
from shoal.runs.checkpoint_folders import CHECKPOINT_NAME, LIMITS, checkpoints_of
from shoal.runs.folders import CHAIN_FILE, EXPERIMENT_FILE, RESULTS_FILE, SWEEP_FILE, env_text, is_run
from shoal.runs.lease import LeaseWatch
from shoal.runs.outcomes import OUTCOME_FILE, read_outcome
from shoal.runs.results_check import Receipts, checked_results, last_linked
from shoal.runs.stopping import stop_reason

RETURN = "episode_reward_mean"
RETURN_KEY = b'"episode_reward_mean":'
NUMBER = re.compile(rb"\s*-?\d+(\.\d+)?([eE][+-]?\d+)?")
BLOCK_BYTES = 1 << 20

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
    lacks_results: bool = False  # though it has made iterations: its file of results is damaged or missing
    known_settings: Mapping[str, Any] | None = None  # if they were read together with those of others

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Its config, flat; nothing if it cannot be read any more."""
        if self.known_settings is not None:
            return self.known_settings
        try:
            return _read_settings(self.path)
        except UNREADABLE:
            return {}

    @property
    def shown(self) -> dict[str, Any]:
        """What the table has of it."""
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
        return {name: value for name, value in own.items() if value is not None}

    @property
    def values(self) -> dict[str, Any]:
        """All by which runs are chosen and sorted: results of the last iteration, settings, and what the table has."""
        return {**self.settings, **self.progress.last, **self.shown}

    def to_json(self) -> dict[str, Any]:
        """The run as a program reads it."""
        return {
            "path": str(self.path),
            "name": self.name,
            "state": self.state,
            "resumable": self.is_resumable,
            "damaged": self.lacks_results,
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


def runs_below(folder: Path, with_settings: bool = False) -> RunsBelow:
    """The runs of a results folder or of one experiment; trials of sweeps are left out.

    `with_settings` reads the settings of all, which are kept beside the runs too.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give one that holds runs, such as ~/shoal_results.")
    kept_in = None if may_be_run(folder) else folder  # a run's own folder is the run's
    cache = RunCache(kept_in)
    found = {path: listed(path, cache) for path in _run_folders(folder)}
    cache.keep()
    runs = sorted((run for run in found.values() if run is not None), key=lambda run: -run.changed)
    if with_settings:
        runs = _with_settings(runs, RunCache(kept_in, SETTINGS_CACHE_FILE))
    unread = [path for path, run in found.items() if run is None]
    return RunsBelow(runs, list(filter(may_be_run, unread)))  # without those that were just removed


def _with_settings(runs: Sequence[ListedRun], cache: RunCache) -> list[ListedRun]:
    """The runs, each with its settings; one whose settings cannot be read any more is as it was."""
    found = []
    for run in runs:
        try:
            stamp = _stamp(run.path / EXPERIMENT_FILE)
            read = partial(_read_settings, run.path)
            known: dict[str, Any] = cache.value(run.path, "settings", stamp, read, dict, _settings_again)
            found.append(replace(run, known_settings=known))
        except UNREADABLE:
            found.append(run)
    cache.keep()
    return found


def damaged_text(names: Sequence[str]) -> str:
    """What to say of runs that are not listed because they cannot be read, with the folder of each in its own line."""
    lines = [
        f"{len(names)} more run{'s' * (len(names) != 1)} cannot be read, since files are damaged or missing; "
        "shoal verify RUN says which, shoal runs rm RUN deletes one:",
        *map(printable, names),
    ]
    return "\n  ".join(lines)


def listed(path: Path, cache: RunCache | None = None, progress: Progress | None = None) -> ListedRun | None:
    """One run, with `progress` if that is known; None if it cannot be read, or if it has just been removed."""
    cache = cache or RunCache()
    try:
        size, changed = size_and_change(path, cache)
        if progress is None:
            progress = known_progress(path, cache)
        return described(path, progress, LeaseWatch().is_written(path), size, changed, cache)
    except UNREADABLE:
        return None


def described(
    path: Path, progress: Progress, is_written: bool, size: int, changed: float, cache: RunCache
) -> ListedRun:
    """One run, of which all is known but what its experiment and its outcome say; one of `UNREADABLE` if that fails."""
    stamp = _stamp(path / EXPERIMENT_FILE)
    about: _About = cache.value(path, "about", stamp, lambda: _read_about(path), vars, lambda kept: _About(**kept))
    state = "running" if is_written else _state(path, progress, about.stop, cache)
    is_resumable = state not in ("running", "finished") and bool(checkpoints_of(path))
    lacks_results = not is_written and _lacks_results(path, progress, cache)
    return ListedRun(
        path, about.name, state, is_resumable, about.algorithm, about.env, progress, changed, size, lacks_results
    )


def _lacks_results(path: Path, progress: Progress, cache: RunCache) -> bool:
    """Whether a run's results end before its chain does, and nothing tells why."""
    if not progress.last:
        return checked_results(path).verdict == "problem"
    linked = 0
    with suppress(OSError):
        stamp = _stamp(path / CHAIN_FILE)
        linked = cache.value(path, "linked", stamp, lambda: last_linked(path), int, int)
    if linked <= progress.last.get("training_iteration", linked):
        return False
    return checked_results(path, Receipts({linked: 0})).verdict == "problem"


def known_progress(path: Path, cache: RunCache) -> Progress:
    """What a run's results say; nothing if there are none."""
    file = path / RESULTS_FILE
    try:
        stamp = _stamp(file)
    except FileNotFoundError:
        return Progress()
    found: Progress = cache.value(path, "progress", stamp, lambda: read_progress(file), vars, _progress_again)
    return found


@dataclass(frozen=True)
class _About:
    """What the list shows of an experiment."""

    name: str
    algorithm: str
    env: str
    stop: dict[str, float]


def _read_about(path: Path) -> _About:
    tree = _tree(path)
    env = env_text(dict(tree["config"]).get("env", ""))
    return _About(str(tree["name"]), str(tree["run"]), env, numbers(dict(tree.get("stop") or {})))


def _settings_again(kept: Any) -> dict[str, Any]:
    return dict(kept)


def _read_settings(path: Path) -> dict[str, Any]:
    return flat({name: value for name, value in _tree(path)["config"].items() if name != "env"})


def _tree(path: Path) -> dict[str, Any]:
    return dict(json.loads(bounded_bytes(path / EXPERIMENT_FILE, LIMITS[EXPERIMENT_FILE])))


def _progress_again(kept: Any) -> Progress:
    """The progress of its JSON; a TypeError if it is of somebody else's making."""
    last, best = kept["last"], kept["best"]
    if not {type(value) for value in (*last.values(), best)} <= {int, float, type(None)}:
        raise TypeError("not numbers")
    return Progress(last, best)


def _stamp(file: Path) -> tuple[int, int]:
    """By what it is seen that a file has changed."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def read_progress(file: Path) -> Progress:
    """Read a run's results; a line that is half written is passed over."""
    with open_regular(file, MOST_RESULTS_BYTES) as opened:
        return progress_after(Progress(), bounded_lines(opened))


def progress_after(before: Progress, lines: Iterable[bytes]) -> Progress:
    """What the results say when these lines have come too."""
    progress = before
    for block in _blocks(lines):
        progress = _progress_after_block(progress, block)
    return progress


def _blocks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines, so many at a time that all are read soon and memory is not filled."""
    block: list[bytes] = []
    held = 0
    for line in lines:
        block.append(line)
        held += len(line)
        if held > BLOCK_BYTES:
            yield block
            block, held = [], 0
    if block:
        yield block


def _progress_after_block(before: Progress, block: Sequence[bytes]) -> Progress:
    """Only the lines that decide are parsed: the last, and the one with the best return, told by its text."""
    last = next((result for result in map(_result_of, reversed(block)) if result is not None), None)
    best = before.best
    for bound, line in sorted(((_highest_return(line), line) for line in block), reverse=True):
        if bound == -inf or (best is not None and bound <= best):
            break
        mean = number_in(_result_of(line) or {}, RETURN)
        if mean is not None and (best is None or mean > best):
            best = mean
    return Progress(before.last if last is None else numbers(last), best)


def _result_of(line: bytes) -> dict[str, Any] | None:
    """The result of a line; None if it is half written or somebody else's."""
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def _highest_return(line: bytes) -> float:
    """The highest number that has the name of the mean return anywhere in a line: its own can be no higher."""
    found = [NUMBER.match(rest) for rest in line.split(RETURN_KEY)[1:]]
    return max((float(match[0]) for match in found if match is not None), default=-inf)


def _run_folders(folder: Path) -> Iterator[Path]:
    """The folder itself if it is a run, and the runs one and two levels below it."""
    if may_be_run(folder):
        yield folder
        return
    for child in folders_in(folder):
        if may_be_run(child):
            yield child
        elif not (child / SWEEP_FILE).is_file():
            yield from filter(may_be_run, folders_in(child))


def may_be_run(path: Path) -> bool:
    """Whether a folder is a run, damaged or not; one that cannot be looked into is none."""
    try:
        return is_run(path)
    except OSError:
        return False


def folders_in(folder: Path) -> Iterable[Path]:
    """The folders in a folder, without links; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def size_and_change(path: Path, cache: RunCache | None = None) -> tuple[int, float]:
    """The bytes of all files below, and when the newest of them was changed.

    A checkpoint is whole when it gets its name and never changes after, so those that are known are not looked into.
    """
    size, changed = 0, path.stat().st_mtime
    saved: list[str] = []
    saved_at: list[int] = []
    for entry in _entries(path):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # removed meanwhile
            continue
        if not stat.S_ISDIR(status.st_mode):
            size += status.st_size
            changed = max(changed, status.st_mtime)
        elif CHECKPOINT_NAME.fullmatch(entry.name):
            saved.append(entry.path)
            saved_at.append(status.st_mtime_ns)
            changed = max(changed, status.st_mtime)
        else:
            inner, newest = _size_below(entry.path)
            size += inner
            changed = max(changed, newest)
    if saved:
        stamp = [len(saved), sum(saved_at)]
        size += (cache or RunCache()).value(path, "checkpoints", stamp, lambda: _sizes_below(saved), int, int)
    return size, changed


def _sizes_below(folders: Iterable[str]) -> int:
    return sum(_size_below(folder)[0] for folder in folders)


def _size_below(folder: str) -> tuple[int, float]:
    """The bytes of all files below a folder, and when the newest of them was changed."""
    size, changed = 0, 0.0
    for entry in _entries(folder):
        try:
            if entry.is_dir(follow_symlinks=False):
                inner, newest = _size_below(entry.path)
            else:
                status = entry.stat(follow_symlinks=False)
                inner, newest = status.st_size, status.st_mtime
        except OSError:  # removed meanwhile
            continue
        size += inner
        changed = max(changed, newest)
    return size, changed


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _state(path: Path, progress: Progress, stop: Mapping[str, float], cache: RunCache) -> RunState:
    """How a run stands that nobody writes."""
    ended: RunState | None = None
    with suppress(FileNotFoundError):
        stamp = _stamp(path / OUTCOME_FILE)
        ended = cache.value(path, "outcome", stamp, lambda: ended_state(path), lambda state: state, _state_again)
    if ended is not None:
        return ended
    if stop_reason(progress.last, stop):  # of a version that wrote no outcome
        return "finished"
    return "killed" if progress.last else "new"


def ended_state(path: Path) -> RunState | None:
    """How a run has ended, if it has; also while its process still closes its environments, and reports."""
    outcome = read_outcome(path)
    return None if outcome is None else STATES[outcome.kind]


def _state_again(kept: Any) -> RunState | None:
    if kept is not None and kept not in STATES.values():
        raise ValueError("not a state")
    return kept  # type: ignore[no-any-return]
