"""The course of a result over a trial, read without parsing every line of a long run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shoal.data.results import number_in
from shoal.runs.bounded_files import MOST_RESULTS_BYTES, open_regular
from shoal.runs.folders import RESULTS_FILE

if TYPE_CHECKING:
    from shoal.config.sweep import Mode
    from shoal.reports.records import TrialRecord

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

MOST_POINTS, FEWEST_POINTS, POINTS_IN_ALL = 300, 30, 30_000


@dataclass(frozen=True)
class Curve:
    """A result `y` at each `x`, which grows."""

    x: Floats
    y: Floats


def axis_of(records: Sequence[TrialRecord]) -> str:
    """What all trials can be drawn over: steps of environments, or else the number of the result."""
    begun = [record for record in records if record.last_result]
    steps = "timesteps_total"
    return steps if begun and all(steps in record.last_result for record in begun) else "training_iteration"


def read_curve(path: Path, metric: str, axis: str, most: int = MOST_POINTS) -> Curve | None:
    """The course of `metric` in a `result.json`, by at most `most` of its lines, the first and the last among them.

    None if it never appears.
    """
    try:
        with open_regular(path, MOST_RESULTS_BYTES) as file:
            content = file.read()
    except OSError:
        return None
    known = list(enumerate(content.splitlines(), start=1))
    marks = (f'"{metric}"'.encode(), f'"{metric.partition("/")[0]}"'.encode())
    if content.count(marks[1]) < len(known):
        # An evaluation comes only now and then: lines without it must not take the place of those that have it.
        known = [(at, line) for at, line in known if marks[0] in line or marks[1] in line]
    places = sorted({round(place) for place in np.linspace(0, len(known) - 1, min(most, len(known)))})
    x, y = [], []
    for at, line in (known[place] for place in places):
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a process that was killed
        value, where = number_in(result, metric), number_in(result, axis)
        if value is not None:
            x.append(float(at) if where is None else where)
            y.append(value)
    return Curve(np.asarray(x), np.asarray(y)) if y else None


def read_curves(folder: Path, records: Sequence[TrialRecord], metric: str, axis: str) -> dict[int, Curve]:
    """The curves of all trials that have one, by their number; the more trials, the fewer points of each."""
    most = min(max(POINTS_IN_ALL // max(len(records), 1), FEWEST_POINTS), MOST_POINTS)
    found = {
        record.index: read_curve(folder / record.folder / RESULTS_FILE, metric, axis, most)
        for record in records
        if record.folder and record.status != "waiting"
    }
    return {index: curve for index, curve in found.items() if curve is not None}


def value_at(curve: Curve, x: Floats) -> Floats:
    """The newest value at each `x`; NaN before the first."""
    place = np.searchsorted(curve.x, x, side="right") - 1
    return np.where(place < 0, np.nan, curve.y[np.maximum(place, 0)])


def fair_ranks(curves: Sequence[Curve], mode: Mode) -> Floats:
    """The share of the others that each is better than, any two compared at the last place that both reached.

    So a trial that was stopped early is compared with what the others had reached by then, and one that ended sooner
    because it met its goal is better than those that had not met it. Equal, or not comparable, counts one half.
    """
    count = len(curves)
    ends = np.asarray([curve.x[-1] for curve in curves])
    sign = 1.0 if mode == "max" else -1.0
    there = np.stack([sign * value_at(curve, np.minimum(curve.x[-1], ends)) for curve in curves])
    better, worse = there > there.T, there < there.T
    wins = np.where(better, 1.0, np.where(worse, 0.0, 0.5))
    return np.asarray((wins.sum(axis=1) - 0.5) / max(count - 1, 1))
