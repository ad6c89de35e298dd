"""Which of two is better, and when further seeds may end."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_run

from shoal.errors import ConfigError
from shoal.reports.comparison import Comparison, Scored, compared, probability_of_improvement
from shoal.reports.reported_runs import read_run
from shoal.reports.sequential import ENOUGH, by_seed, evidence_of, next_seeds, paired_test


def made(first: list[float], second: list[float]) -> Comparison:
    return Comparison("return", "timesteps_total", 1000, Scored("A", tuple(first)), Scored("B", tuple(second)), "max")


def test_what_can_be_said_of_few_and_of_many() -> None:
    few = made([10, 11], [1, 2])
    assert few.chance is None
    assert not few.is_sure
    assert (
        "better in 4 of 4 pairs of runs, but so few may be luck; about 2 more seeds of each would tell."
        in few.sentence()
    )
    many = made([10, 11, 12, 13, 14], [1, 2, 3, 4, 5])
    assert many.is_sure
    assert many.sentence() == (
        "A is better than B, by more than luck (return 12 and 3 at 1000 steps; permutation test, p < 0.01): "
        "a run of it is better with probability 1.00."
    )
    assert many.probability_interval == (1.0, 1.0)
    close = made([10, 1, 12, 3], [9, 2, 11, 2])
    assert not close.is_sure
    assert "which may be luck (permutation test, p = " in close.sentence()
    assert made([1], [1]).sentence() == "A and B are equal (return 1 and 1 at 1000 steps)."
    assert "more seeds than anybody trains" in made([1.0, 9.0, 5.0, 3.0], [1.0, 9.0, 5.0, 2.99]).sentence()


def test_the_better_by_its_middle_is_not_called_so_by_a_test_of_means_that_say_the_opposite() -> None:
    # The middle half of A is higher, while its mean is far lower because of the runs that failed.
    always = made([5.2] * 18 + [0] * 6, [5.1] * 24)
    assert always.chance is not None
    assert always.chance < 0.05
    assert not always.is_sure
    assert always.sentence() == (
        "A looks better than B (return 5.2 and 5.1 at 1000 steps), with probability 0.75, but its mean is worse "
        "(3.9 and 5.1): a few of its runs are far off; look at each."
    )
    lower = Comparison(
        "return", "timesteps_total", 1000, Scored("A", (1, 2, 3, 4)), Scored("B", (11, 12, 13, 14)), "min"
    )
    assert lower.is_sure


def test_the_interval_is_that_of_the_middle_half() -> None:
    side = Scored("A", (1.0, 2.0, 3.0, 1000.0))
    assert side.iqm == 2.5
    low, high = side.interval or (math.nan, math.nan)
    assert low <= 2.5 <= high
    assert Scored("A", (1.0,)).interval is None
    assert probability_of_improvement([1, 2], [1, 3]) == (0.5 + 0 + 1 + 0) / 4
    assert probability_of_improvement([1, 2], [1, 3], "min") == (0.5 + 1 + 0 + 1) / 4


def test_runs_are_compared_where_the_shortest_ends(tmp_path: Path) -> None:
    slow = [read_run(fake_run(tmp_path, "slow", seed, course=lambda at: float(at))) for seed in (0, 1)]
    fast = [read_run(fake_run(tmp_path, "fast", 0, course=lambda at: 2.0 * at, iterations=5))]
    found = compared(("slow", slow), ("fast", fast), "episode_reward_mean", "timesteps_total")
    assert (found.at, found.first.label, found.first.scores, found.second.scores) == (500, "fast", (10.0,), (5.0, 5.0))
    early = compared(("slow", slow), ("fast", fast), "episode_reward_mean", "timesteps_total", "min", 300)
    assert (early.first.label, early.first.scores) == ("slow", (3.0, 3.0))
    with pytest.raises(
        ConfigError, match="--at: not all runs have reached timesteps_total 900; the shortest ends at 500"
    ):
        compared(("slow", slow), ("fast", fast), "episode_reward_mean", "timesteps_total", at=900)
    with pytest.raises(ConfigError, match="no run of slow has"):
        compared(("slow", slow), ("fast", fast), "episode_reward_mean", "timesteps_total", at=50)


def test_the_evidence_is_a_martingale_and_seldom_deceives() -> None:
    assert evidence_of(0, 0) == pytest.approx(1)
    for wins in range(6):
        for losses in range(6):
            after = (evidence_of(wins + 1, losses) + evidence_of(wins, losses + 1)) / 2
            assert after == pytest.approx(evidence_of(wins, losses))
    assert evidence_of(6, 0) < ENOUGH <= evidence_of(7, 0)
    rng = np.random.default_rng(0)
    deceived = 0
    for _ in range(1000):
        wins = np.cumsum(rng.integers(0, 2, 100))
        deceived += any(evidence_of(int(w), n - int(w)) >= ENOUGH for n, w in enumerate(wins, start=1))
    assert deceived / 1000 <= 0.05


def test_pairs_are_of_equal_seeds(tmp_path: Path) -> None:
    first = [read_run(fake_run(tmp_path, "a", seed)) for seed in range(8)]
    second = [read_run(fake_run(tmp_path, "b", seed, course=lambda at: at - 0.5)) for seed in (*range(7), 9)]
    one, two = by_seed(first), by_seed(second)
    pairs = [(one[seed], two[seed]) for seed in sorted(one.keys() & two.keys())]
    test = paired_test(("a", "b"), pairs, "episode_reward_mean", "timesteps_total", "max", None)
    assert (test.first_wins, test.second_wins, test.ties) == (7, 0, 0)
    assert test.is_decided
    assert test.sentence().startswith("Decided: a is better than b (7 of 7 pairs of seeds; evidence 26.8 reaches 20")
    worse = paired_test(("a", "b"), pairs[:3], "episode_reward_mean", "timesteps_total", "min", None)
    assert worse.sentence().startswith("Not decided: b won 3 of 3 pairs of seeds; evidence 2.5, and 20 is needed.")
    assert next_seeds(list(one), list(two), 1) == [7]
    assert next_seeds([0, 1], [0, 1], 1) == [2]
    assert next_seeds([], [], 3) == [0, 1, 2]
    assert next_seeds([0, 2, 5], [0, 7], 4) == [2, 5, 7, 1]
