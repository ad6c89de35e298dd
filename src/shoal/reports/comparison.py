"""Whether one group of runs is better than another, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.data.number_text import counted, number_text, tick_text
from shoal.errors import ConfigError
from shoal.machine.terminal import printable
from shoal.reports.curves import value_at
from shoal.reports.reported_runs import ReportedRun
from shoal.reports.statistics import SURE, chance_of_difference, iqm
from shoal.runs.folders import RESULTS_FILE
from shoal.runs.results_check import checked_results

if TYPE_CHECKING:
    from shoal.config.sweep import Mode

RESAMPLES = 5000
POWER = (1.96 + 0.84) ** 2
"""Of the quantiles that make a test at 5 % see a difference with probability 80 %."""
MOST_SEEDS = 200  # above which nobody trains more to tell two settings apart
UNITS = {"timesteps_total": "steps", "time_total_s": "s of training", "training_iteration": "iterations"}


@dataclass(frozen=True)
class Scored:
    """One side: what it is called, and the score of each of its runs."""

    label: str
    scores: tuple[float, ...]
    runs: tuple[ReportedRun, ...] = ()
    """Those of the scores."""

    @property
    def iqm(self) -> float:
        """Interquartile mean of the scores."""
        return iqm(self.scores)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval by the bootstrap over runs; None of a single run."""
        if len(self.scores) < 2:
            return None
        return bootstrap([self.scores], lambda drawn: iqm_of_rows(drawn[0]))

    def text(self) -> str:
        """`248 (95 % interval 230 to 261, 5 runs)`."""
        sure = "" if self.interval is None else f"95 % interval {' to '.join(map(number_text, self.interval))}, "
        return f"{number_text(self.iqm)} ({sure}{counted(len(self.scores), 'run')})"


@dataclass(frozen=True)
class Comparison:
    """Two sides by one metric at one place of one axis; `first` is the better one by its IQM."""

    metric: str
    axis: str
    at: float
    first: Scored
    second: Scored
    mode: Mode

    @property
    def probability(self) -> float:
        """How often a run of the first is better than one of the second; a tie counts one half."""
        return probability_of_improvement(self.first.scores, self.second.scores, self.mode)

    @property
    def probability_interval(self) -> tuple[float, float] | None:
        """Its 95 % interval by the bootstrap over the runs of both; None of so few that it would say nothing."""
        if min(len(self.first.scores), len(self.second.scores)) < 4:
            return None
        sign = 1.0 if self.mode == "max" else -1.0

        def wins(drawn: list[np.ndarray]) -> np.ndarray:
            apart = sign * (drawn[0][:, :, None] - drawn[1][:, None, :])
            return np.asarray(((apart > 0) + 0.5 * (apart == 0)).mean(axis=(1, 2)))

        return bootstrap([self.first.scores, self.second.scores], wins)

    @property
    def chance(self) -> float | None:
        """How often means would lie so far apart by chance (permutation test); None of too few runs to ever tell."""
        count = math.comb(len(self.first.scores) + len(self.second.scores), len(self.first.scores))
        return None if 2 / count > SURE else chance_of_difference(self.first.scores, self.second.scores)

    @property
    def is_sure(self) -> bool:
        """Whether the difference is more than luck, and that of the means of the same sign as that of the IQMs."""
        return self.chance is not None and self.chance < SURE and not self.is_contrary

    @property
    def is_contrary(self) -> bool:
        """Whether the mean of the first, which is better by its IQM, is worse."""
        apart = float(np.mean(self.first.scores)) - float(np.mean(self.second.scores))
        return apart < 0 if self.mode == "max" else apart > 0

    @property
    def lacking(self) -> int | None:
        """About how many more seeds of each would tell them apart, if the difference is as large as it looks."""
        fewest = min(len(self.first.scores), len(self.second.scores))
        spreads = [np.var(side.scores, ddof=1) for side in (self.first, self.second) if len(side.scores) > 1]
        apart = abs(float(np.mean(self.first.scores)) - float(np.mean(self.second.scores)))
        if not spreads or apart == 0:
            return None if apart == 0 else max(4 - fewest, 1)
        needed = max(4, math.ceil(2 * POWER * float(np.mean(spreads)) / apart**2))
        return max(needed - fewest, 1) if needed <= MOST_SEEDS else None

    def sentence(self) -> str:
        """What can honestly be said, in one sentence."""
        first, second = self.first, self.second
        where = f"at {tick_text(self.at)} {UNITS.get(self.axis, self.axis)}"
        scores = f"{self.metric} {number_text(first.iqm)} and {number_text(second.iqm)} {where}"
        if first.iqm == second.iqm:
            return f"{first.label} and {second.label} are equal ({scores})."
        if self.is_sure:
            assert self.chance is not None
            test = "p < 0.01" if self.chance < 0.01 else f"p = {self.chance:.2f}"
            return (
                f"{first.label} is better than {second.label}, by more than luck ({scores}; permutation test, {test}): "
                f"a run of it is better with probability {self.probability:.2f}."
            )
        return f"{first.label} looks better than {second.label} ({scores}), {self._doubt()}"

    def _doubt(self) -> str:
        if self.is_contrary:
            means = " and ".join(number_text(float(np.mean(side.scores))) for side in (self.first, self.second))
            why = f"but its mean is worse ({means}): a few of its runs are far off; look at each"
            return f"with probability {self.probability:.2f}, {why}."
        lacking = self.lacking
        if lacking is None:
            more = "it would take more seeds than anybody trains to tell"
        else:
            more = f"about {lacking} more seed{'s' * (lacking != 1)} of each would tell"
        if self.chance is None:
            first, second = len(self.first.scores), len(self.second.scores)
            won = f"{self.probability * first * second:g} of {counted(first * second, 'pair')} of runs"
            return f"better in {won}, but so few may be luck; {more}."
        luck = f"which may be luck (permutation test, p = {self.chance:.2f})"
        return f"with probability {self.probability:.2f}, {luck}; {more}."


def compared(
    first: tuple[str, Sequence[ReportedRun]],
    second: tuple[str, Sequence[ReportedRun]],
    metric: str,
    axis: str,
    mode: Mode = "max",
    at: float | None = None,
) -> Comparison:
    """Compare two groups of runs where the shortest of them ended, or at another place that all of them reached."""
    everybody = [*first[1], *second[1]]
    end = common_end(everybody, metric, axis)
    if at is not None and at > end:
        raise ConfigError(
            f"--at: not all runs have reached {axis} {number_text(at)}; the shortest ends at {number_text(end)}"
        )
    place = end if at is None else at
    sides = [scored_at(label, runs, metric, axis, place) for label, runs in (first, second)]
    for side, (_, runs) in zip(sides, (first, second)):
        if not side.scores:
            lacks = f"no run of {side.label} has {metric} at {axis} {number_text(place)}"
            raise ConfigError(f"{lacks}{_why_none(runs, at)}")
    sign = 1 if mode == "max" else -1
    sides.sort(key=lambda side: -sign * side.iqm)
    return Comparison(metric, axis, place, sides[0], sides[1], mode)


def _why_none(runs: Sequence[ReportedRun], at: float | None) -> str:
    """Why the runs of a side have nothing at the place of the comparison, and what to do."""
    for run in runs:
        finding = checked_results(run.path)
        if finding.verdict == "problem":
            return f": {RESULTS_FILE} of {printable(run.path.name)} is damaged ({finding.text})"
    return ", where the shortest run ends; train that for longer" if at is None else "; give a larger --at"


def common_end(runs: Sequence[ReportedRun], metric: str, axis: str) -> float:
    """How far all runs that have the metric went."""
    curves = [curve for run in runs if (curve := run.curve(metric, axis)) is not None]
    if not curves:
        raise ConfigError(f"no run has {metric} beside {axis}")
    return min(float(curve.x[-1]) for curve in curves)


def scored_at(label: str, runs: Sequence[ReportedRun], metric: str, axis: str, at: float) -> Scored:
    """The runs with the newest value of each there; those that have none are left out."""
    scores, members = [], []
    for run in runs:
        curve = run.curve(metric, axis)
        if curve is not None and not np.isnan(value := value_at(curve, np.array([at]))[0]):
            scores.append(float(value))
            members.append(run)
    return Scored(label, tuple(scores), tuple(members))


def probability_of_improvement(first: Sequence[float], second: Sequence[float], mode: Mode = "max") -> float:
    """The share of pairs in which the first is better; ties count one half."""
    sign = 1.0 if mode == "max" else -1.0
    apart = sign * (np.asarray(first)[:, None] - np.asarray(second)[None, :])
    return float(((apart > 0) + 0.5 * (apart == 0)).mean())


def iqm_of_rows(rows: np.ndarray) -> np.ndarray:
    """The interquartile mean of each row of `[R, N]`."""
    cut = rows.shape[1] // 4
    return np.asarray(np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(axis=1))


def bootstrap(
    sides: Sequence[Sequence[float]], statistic: Callable[[list[np.ndarray]], np.ndarray]
) -> tuple[float, float]:
    """The 95 % interval of a statistic when each side is drawn again from its own scores; always the same."""
    rng = np.random.default_rng(0)
    drawn = [np.asarray(side)[rng.integers(0, len(side), (RESAMPLES, len(side)))] for side in sides]
    low, high = np.percentile(statistic(drawn), [2.5, 97.5])
    return float(low), float(high)
