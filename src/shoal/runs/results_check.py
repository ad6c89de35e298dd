"""Whether the `result.json` of a run has what its iterations reported."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.data.findings import Finding
from shoal.data.number_text import number_text
from shoal.data.results import is_number, numbers
from shoal.errors import CheckpointError
from shoal.runs.bounded_files import MOST_RESULTS_BYTES, bounded_bytes, bounded_lines, open_regular
from shoal.runs.checkpoint_folders import checkpoints_of, iteration_of
from shoal.runs.folders import CHAIN_FILE, RESULTS_FILE
from shoal.runs.lineage import read_lineage
from shoal.runs.outcomes import read_outcome

REMEDY = "the run can go on; plots and reports lack these iterations"
OTHER = "it was changed, or the disk lost a part of it; the run can go on"
LOG_FILE = "log.txt"
LOG_LIMIT = 1 << 28
LOSSES = (f"{RESULTS_FILE} cannot be written", f"{RESULTS_FILE} are lost", "Its last iteration is saved in")
"""What the log of a run says that could not write its rows, or whose folder was taken from under it."""
CHAIN_LOSS = f"{CHAIN_FILE} cannot be written"
FULL = "could not be written"
MOST_GAPS = 5  # that are worth naming
TAIL_BYTES = 1 << 13  # of a chain, whose links have half a kilobyte


@dataclass(frozen=True)
class Receipts:
    """What chain and checkpoints tell of a run's iterations.

    `timesteps` are those in all after each iteration of the chain, which `has_all` says is whole from the first one on;
    `summaries` are the numbers that good checkpoints have of theirs.
    """

    timesteps: Mapping[int, int] = field(default_factory=dict)
    has_all: bool = False
    summaries: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    is_written: bool = False
    """Whether somebody trains the run now, so that its files grow while they are compared."""

    @property
    def last(self) -> int:
        """The newest iteration that they tell of."""
        return max((*self.timesteps, *self.summaries), default=0)


NONE = Receipts()


@dataclass
class _Rows:
    """The lines of a file of results."""

    counts: list[tuple[int, Any]] = field(default_factory=list)
    """The iteration and the steps of each result, in their order."""
    shown: dict[int, dict[str, float]] = field(default_factory=dict)
    """The numbers of those iterations that are to be compared."""
    wrong: int = 0
    is_cut_off: bool = False


def checked_results(folder: Path, receipts: Receipts = NONE) -> Finding:
    """What is right and wrong with a run's results, beside what its receipts tell of."""
    try:
        rows = _read(folder, receipts)
    except FileNotFoundError:
        return _without_results(folder, receipts.last, "it is missing")
    except OSError as error:
        why = {errno.ELOOP: "is a link", errno.EINVAL: "is not a regular file"}.get(error.errno or 0)
        return _problem(f"it {why}" if why else f"it cannot be read ({error.strerror})")
    good = len(rows.counts)
    if rows.wrong:
        return _problem(f"{rows.wrong} of its {good + rows.wrong} lines are no results")
    if not good:
        return _without_results(folder, receipts.last, "it has no result")
    if told := _disorder(rows) or _other_values(rows, receipts) or _beyond(folder, rows, receipts):
        return Finding(RESULTS_FILE, "problem", told, OTHER)
    if missing := _missing(folder, rows, receipts):
        return _with_gaps(folder, rows, missing)
    if rows.is_cut_off:
        return Finding(RESULTS_FILE, "note", f"{good} results; its last line is cut off, and does not count")
    return Finding(RESULTS_FILE, "ok", f"{good} results")


def last_linked(folder: Path) -> int:
    """The iteration of the newest link of a run's chain, whose last lines alone are read; 0 if it has none there."""
    with open_regular(folder / CHAIN_FILE) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            return int(json.loads(line)["iteration"])
    return 0


def _read(folder: Path, receipts: Receipts) -> _Rows:
    rows = _Rows()
    with open_regular(folder / RESULTS_FILE, MOST_RESULTS_BYTES) as file:
        for line in bounded_lines(file):
            rows.is_cut_off = line.startswith(b"{") and not line.endswith(b"\n")
            result = None if rows.is_cut_off else _result(line)
            if result is not None:
                iteration = result["training_iteration"]
                rows.counts.append((int(iteration), result.get("timesteps_total")))
                if iteration in receipts.summaries:
                    rows.shown[iteration] = numbers(result)
            elif not rows.is_cut_off:
                rows.wrong += 1
    return rows


def _disorder(rows: _Rows) -> str | None:
    """Where a result does not come after the one before it."""
    before = 0
    for iteration, _ in rows.counts:
        if iteration <= before:
            again = "a second time" if iteration == before else f"after iteration {before}"
            return f"iteration {iteration} is in it {again}"
        before = iteration
    return None


def _other_values(rows: _Rows, receipts: Receipts) -> str | None:
    """The first number that is another than the chain or a checkpoint has; what the clock says of a save is none."""
    for iteration, steps in rows.counts:
        linked = receipts.timesteps.get(iteration, steps)
        if steps != linked:
            return f"timesteps_total of iteration {iteration} is {_shown(steps)}, and {_shown(linked)} in the chain"
        row = rows.shown.get(iteration, {})
        for name, saved in receipts.summaries.get(iteration, {}).items():
            if row.get(name) != saved and not name.startswith("timers/"):
                value = _shown(row.get(name))
                return f"{name} of iteration {iteration} is {value}, and {_shown(saved)} in its checkpoint"
    return None


def _beyond(folder: Path, rows: _Rows, receipts: Receipts) -> str | None:
    """The results that are newer than the chain, whose links are written first."""
    last = rows.counts[-1][0]
    linked = max(receipts.timesteps, default=last)
    if receipts.is_written or last <= linked or _log_has(folder, CHAIN_LOSS):
        return None
    return f"it goes to iteration {last}, and the chain to {linked}"


def _missing(folder: Path, rows: _Rows, receipts: Receipts) -> list[tuple[int, int]]:
    """The first and the last of iterations that have no result though a later one has, or a receipt."""
    there = [iteration for iteration, _ in rows.counts]
    lineage = read_lineage(folder)
    before = there[0] - 1
    if receipts.has_all or lineage is not None:
        before = 0 if lineage is None else lineage.iteration
    last = there[-1] if receipts.is_written else max(there[-1], receipts.last)
    pairs = pairwise([before, *there, last + 1])
    return [(low + 1, high - 1) for low, high in pairs if high > low + 1]


def _with_gaps(folder: Path, rows: _Rows, missing: Sequence[tuple[int, int]]) -> Finding:
    """What to say of iterations without a result: a process that was ended leaves one at most, a full disk tells."""
    outcome = read_outcome(folder)
    told = ", ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in missing[:MOST_GAPS])
    words = f"{len(rows.counts)} results; there is none of iteration {told}{' and more' * (len(missing) > MOST_GAPS)}"
    after = rows.counts[-1][0] + 1
    if [*missing] == [(after, after)] and (outcome is None or outcome.kind != "stopped"):
        return Finding(RESULTS_FILE, "note", f"{words}, in which the run was ended")
    if any(_log_has(folder, loss) for loss in LOSSES) or (outcome is not None and FULL in outcome.sentence):
        return Finding(RESULTS_FILE, "note", f"{words}, which could not be written at the time")
    return Finding(RESULTS_FILE, "problem", words, OTHER)


def _log_has(folder: Path, words: str) -> bool:
    try:
        return words.encode() in bounded_bytes(folder / LOG_FILE, LOG_LIMIT)
    except CheckpointError:
        return False


def _shown(value: Any) -> str:
    return number_text(value) if is_number(value) else "missing"


def _without_results(folder: Path, iteration: int, what: str) -> Finding:
    lineage = read_lineage(folder)  # a fork begins with its parent's checkpoint and chain
    first = 0 if lineage is None else lineage.iteration
    saved = max(map(iteration_of, checkpoints_of(folder)), default=0)
    outcome = read_outcome(folder)
    if max(iteration, saved) > first or (outcome is not None and outcome.kind == "stopped"):
        return _problem(f"{what}, though the run has made iterations")
    return Finding(RESULTS_FILE, "note", f"{what}, and no iteration was finished")


def _problem(text: str) -> Finding:
    return Finding(RESULTS_FILE, "problem", text, REMEDY)


def _result(line: bytes) -> dict[str, Any] | None:
    """The result of an iteration that is in a line, with numbers where each has one; None if there is none."""
    try:
        result: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or not is_number(result.get("training_iteration")):
        return None
    shown = [result.get(name) for name in ("timesteps_total", "episode_reward_mean")]
    return result if all(value is None or is_number(value) for value in shown) else None
