"""Means over seeds, and whether two configurations differ."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.reports.records import TrialRecord
from shoal.reports.statistics import chance_of_difference, iqm, ranked, verdict


def scored(groups: dict[int, list[float | None]], **changes: str) -> list[tuple[TrialRecord, float | None]]:
    found = []
    for group, scores in groups.items():
        for seed, score in enumerate(scores):
            found.append((TrialRecord(len(found), group, {}, seed), score))
    return found


@pytest.mark.parametrize(
    ("values", "middle"),
    [([3.0], 3.0), ([1.0, 2.0, 6.0], 3.0), ([0.0, 1.0, 2.0, 100.0], 1.5), ([9.0, 1.0, 2.0, 3.0, -50.0], 2.0)],
)
def test_iqm_is_the_mean_of_the_middle_half(values: list[float], middle: float) -> None:
    assert iqm(values) == middle


def test_groups_are_ranked_by_mean_in_both_modes() -> None:
    trials = scored({0: [1.0, 3.0], 1: [10.0, 0.0], 2: [2.5, 2.5]})
    assert [group.index for group in ranked(trials, "max", 2)] == [1, 2, 0]
    assert [group.index for group in ranked(trials, "min", 2)] == [0, 2, 1]
    best = ranked(trials, "max", 2)[0]
    assert best.mean == 5.0
    assert best.interval == (0.0, 10.0)
    assert best.trials[0].index == 2
    assert ranked(trials, "min", 2)[2].trials[0].index == 3


def test_who_lacks_a_seed_comes_last_and_a_failure_is_a_seed_lost() -> None:
    trials = scored({0: [1.0, 1.0], 1: [100.0, None], 2: [50.0, 50.0]})
    trials[-1] = (TrialRecord(5, 2, {}, 1, status="failed"), 50.0)
    found = ranked(trials, "max", 2)
    assert [group.index for group in found] == [0, 1, 2]
    assert found[2].scores == (50.0,)
    assert found[2].members == (4, 5)
    assert found[1].interval is None


def test_the_permutation_test_against_counting_by_hand() -> None:
    # Of the 70 ways to split, only this one and its mirror image lie as far apart.
    assert chance_of_difference([5, 6, 7, 8], [1, 2, 3, 4]) == pytest.approx(2 / 70)
    assert chance_of_difference([1, 2], [1, 2]) == 1.0
    assert chance_of_difference([3.0] * 4, [3.0] * 4) == 1.0


def test_the_permutation_test_finds_a_difference_where_there_is_none_as_seldom_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = sum(chance_of_difference(rng.normal(size=5), rng.normal(size=5)) < 0.05 for _ in range(300))
    assert found <= 26  # 15 expected
    rng = np.random.default_rng(1)
    first, second = rng.normal(1.0, 1.0, 30), rng.normal(0.0, 1.0, 30)
    assert chance_of_difference(first, second) < 0.01


def test_the_verdict_says_when_seeds_are_too_few_and_when_one_is_better() -> None:
    assert verdict(ranked(scored({0: [1.0], 1: [2.0]}), "max"), 1) == ""
    few = verdict(ranked(scored({0: [1.0, 2.0, 3.0], 1: [7.0, 8.0, 9.0]}), "max", 3), 3)
    assert few.startswith("3 seeds are too few")
    sure = verdict(ranked(scored({0: [1.0, 2.0, 3.0, 4.0], 1: [7.0, 8.0, 9.0, 6.0]}), "max", 4), 4)
    assert sure == "The first is better than the second by more than luck (permutation test, p = 0.03)."
    unsure = verdict(ranked(scored({0: [1.0, 2.0, 3.0, 4.0], 1: [2.0, 3.0, 4.0, 5.0]}), "max", 4), 4)
    assert unsure.startswith("The first cannot be distinguished from the second")
