r"""When further seeds may end: a test of which of two is better that holds however often one looks.

Runs are paired by their seed, and each pair is compared at the last place that both of it reached. If neither side is
better, the winner of a pair is a fair coin. Against that stands every other coin at once, with the weight that Jeffreys
gives it: after $n$ pairs that are no ties, of which the first side won $w$, the evidence

$$E_n = 2^n \frac{B(w + 1/2,\; n - w + 1/2)}{B(1/2,\; 1/2)}$$

is a martingale that starts at 1. By Ville's inequality it ever reaches 20 with probability of at most 1/20, so who
stops there, after any number of looks, is wrong in at most 5 % of all cases. Seven pairs that all go one way are
enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.data.number_text import counted
from shoal.reports.curves import value_at
from shoal.reports.reported_runs import ReportedRun

if TYPE_CHECKING:
    from shoal.config.sweep import Mode

ENOUGH = 20.0


@dataclass(frozen=True)
class PairedTest:
    """The pairs so far: how many each side won."""

    first_label: str
    second_label: str
    first_wins: int
    second_wins: int
    ties: int = 0

    @property
    def evidence(self) -> float:
        """How much better another coin explains the winners than a fair one; 1 at the start."""
        return evidence_of(self.first_wins, self.second_wins)

    @property
    def is_decided(self) -> bool:
        """Whether further seeds may end."""
        return self.evidence >= ENOUGH

    @property
    def least_missing(self) -> int:
        """How many further pairs it takes at least, which is where all of them go one way."""
        count = 0
        most, least = max(self.first_wins, self.second_wins), min(self.first_wins, self.second_wins)
        while evidence_of(most + count, least) < ENOUGH:
            count += 1
        return count

    def sentence(self) -> str:
        """What the pairs say."""
        pairs = self.first_wins + self.second_wins
        better, worse = (self.first_label, self.second_label)
        won = self.first_wins
        if self.second_wins > self.first_wins:
            better, worse, won = worse, better, self.second_wins
        ties = f", {counted(self.ties, 'tie')} beside them" if self.ties else ""
        told = f"{won} of {counted(pairs, 'pair')} of seeds{ties}; evidence {self.evidence:.3g}"
        if self.is_decided:
            luck = f"reaches {ENOUGH:g}, which luck does in at most 5 % of cases"
            return f"Decided: {better} is better than {worse} ({told} {luck})."
        return f"Not decided: {better} won {told}, and {ENOUGH:g} is needed."


def evidence_of(first_wins: int, second_wins: int) -> float:
    """The evidence against a fair coin after so many wins of each side."""
    count = first_wins + second_wins
    logarithm = (
        math.lgamma(first_wins + 0.5) + math.lgamma(second_wins + 0.5) - math.lgamma(count + 1) - math.log(math.pi)
    )
    return math.exp(count * math.log(2) + logarithm)


def paired_test(
    labels: tuple[str, str],
    pairs: Sequence[tuple[ReportedRun, ReportedRun]],
    metric: str,
    axis: str,
    mode: Mode,
    at: float | None,
) -> PairedTest:
    """Compare each pair at the last place that both of it reached, or at `at`."""
    wins = [0, 0, 0]
    for first, second in pairs:
        apart = _difference(first, second, metric, axis, at)
        sign = apart if mode == "max" else -apart
        wins[0 if sign > 0 else 1 if sign < 0 else 2] += 1
    return PairedTest(*labels, *wins)


def _difference(first: ReportedRun, second: ReportedRun, metric: str, axis: str, at: float | None) -> float:
    curves = [run.curve(metric, axis) for run in (first, second)]
    if curves[0] is None or curves[1] is None:
        return 0.0
    place = min(float(curve.x[-1]) for curve in curves if curve is not None)
    where = np.array([place if at is None else min(at, place)])
    apart = value_at(curves[0], where)[0] - value_at(curves[1], where)[0]
    return 0.0 if np.isnan(apart) else float(apart)


def by_seed(runs: Sequence[ReportedRun]) -> dict[int, ReportedRun]:
    """The first run of each seed; those without one are left out."""
    found: dict[int, ReportedRun] = {}
    for run in runs:
        if isinstance(run.seed, int):
            found.setdefault(run.seed, run)
    return found


def next_seeds(first: Sequence[int], second: Sequence[int], count: int) -> list[int]:
    """The seeds to train next: those that a side lacks, then the smallest that neither has."""
    chosen = sorted(set(first) ^ set(second))[:count]
    known = {*first, *second}
    new = (seed for seed in range(len(known) + count) if seed not in known)
    return chosen + [next(new) for _ in range(count - len(chosen))]
