"""What can be said of a few runs: their mean, where the true one lies, and whether two settings differ at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from shoal.data.metrics import mean_interval
from shoal.data.number_text import counted

if TYPE_CHECKING:
    from shoal.config.sweep import Mode
    from shoal.reports.records import TrialRecord

MOST_SPLITS = 20_000
SURE = 0.05


@dataclass(frozen=True)
class SeedGroup:
    """Trials that differ in nothing but the seed, with the score of each that has one."""

    index: int
    trials: tuple[TrialRecord, ...]
    """Best first; those without a score, or that failed, are not among them."""
    scores: tuple[float, ...]
    members: tuple[int, ...]
    """The numbers of all its trials."""

    @property
    def mean(self) -> float:
        """Mean score of its seeds."""
        return math.fsum(self.scores) / len(self.scores)

    @property
    def iqm(self) -> float:
        """Interquartile mean of its seeds."""
        return iqm(self.scores)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where its true mean lies (95 %, bootstrap); None of fewer than two seeds."""
        low, high = mean_interval(self.scores)
        return (low, high) if low is not None and high is not None else None


def iqm(values: Sequence[float]) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is cut off at each end."""
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    return math.fsum(middle) / len(middle)


def ranked(scored: Iterable[tuple[TrialRecord, float | None]], mode: Mode, seeds: int = 1) -> list[SeedGroup]:
    """Groups by the mean of their scores, best first; one that lacks seeds comes after all that have theirs.

    A mean over fewer seeds is more often high by luck. A trial that failed counts as a seed that is lacking.
    """
    sign = -1 if mode == "max" else 1
    members: dict[int, list[tuple[float, TrialRecord]]] = {}
    indices: dict[int, list[int]] = {}
    for record, score in scored:
        indices.setdefault(record.group, []).append(record.index)
        if score is not None and record.status != "failed":
            members.setdefault(record.group, []).append((score, record))
    groups = []
    for index, found in members.items():
        found.sort(key=lambda pair: (sign * pair[0], pair[1].index))
        scores, trials = tuple(score for score, _ in found), tuple(record for _, record in found)
        groups.append(SeedGroup(index, trials, scores, tuple(sorted(indices[index]))))
    return sorted(groups, key=lambda group: (len(group.scores) < seeds, sign * group.mean, group.index))


def chance_of_difference(first: Sequence[float], second: Sequence[float]) -> float:
    """How often means would lie this far apart if it were chance which score is whose (two-sided permutation test).

    Exact where the ways to split the scores can all be tried, else by the same 20,000 random ones each time.
    """
    together = np.asarray([*first, *second], np.float64)
    count, own = len(together), len(first)
    if math.comb(count, own) <= MOST_SPLITS:
        chosen = np.array(list(combinations(range(count), own)))
    else:
        shuffled = np.random.default_rng(0).permuted(np.tile(np.arange(count), (MOST_SPLITS, 1)), axis=1)
        chosen = np.concatenate([np.arange(own)[None], shuffled[:, :own]])
    sums = together[chosen].sum(axis=1)
    apart = np.abs(sums / own - (together.sum() - sums) / (count - own))
    seen = abs(math.fsum(first) / own - math.fsum(second) / (count - own))
    return float(np.mean(apart >= seen - 1e-9 * max(1.0, abs(seen))))


def verdict(groups: Sequence[SeedGroup], seeds: int) -> str:
    """Whether the first is better than the second by more than luck, as a sentence; empty without seeds."""
    if seeds < 2 or len(groups) < 2:
        return ""
    first, second = groups[:2]
    fewest = math.comb(len(first.scores) + len(second.scores), len(first.scores))
    if 2 / fewest > SURE:
        count = min(len(first.scores), len(second.scores))
        few = counted(count, "seed", ("is", "are"))
        return f"{few} too few to distinguish the first from the second; use 4 or more, better 10."
    chance = chance_of_difference(first.scores, second.scores)
    test = f"permutation test, p {'< 0.01' if chance < 0.01 else f'= {chance:.2f}'}"
    if chance < SURE:
        return f"The first is better than the second by more than luck ({test})."
    return f"The first cannot be distinguished from the second ({test}); more seeds may help."
