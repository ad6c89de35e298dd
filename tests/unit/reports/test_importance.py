"""Importance on data whose truth is known, and trials of different lengths compared fairly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.reports.curves import Curve, fair_ranks
from shoal.reports.importance import Importances, importances


def found(truth: Callable[[dict[str, Any]], float], count: int = 60, noise: float = 0.1, seed: int = 0) -> Importances:
    rng = np.random.default_rng(seed)
    trials = [
        {
            "lr": float(10 ** rng.uniform(-5, -2)),
            "gamma": float(rng.uniform(0.9, 1.0)),
            "net": [[64], [256, 256], [32, 32]][int(rng.integers(3))],
            "flag": bool(rng.integers(2)),
        }
        for _ in range(count)
    ]
    scores = [truth(trial) + noise * float(rng.normal()) for trial in trials]
    return importances(["lr", "gamma", "net", "flag"], trials, np.argsort(np.argsort(scores)))


def shares(result: Importances) -> dict[str, float]:
    return {one.paths[0]: one.share for one in result.settings}


@pytest.mark.parametrize("seed", range(3))
def test_what_matters_is_told_from_what_does_not(seed: int) -> None:
    result = found(lambda trial: np.log10(trial["lr"]), seed=seed)
    assert shares(result)["lr"] > 0.8
    assert max(shares(result)[name] for name in ("gamma", "net", "flag")) < 0.15
    assert result.settings[0].paths == ("lr",)
    assert not result.settings[0].by_chance
    assert not result.pairs


def test_a_best_value_in_the_middle_and_a_category_count_too() -> None:
    result = found(lambda trial: -((np.log10(trial["lr"]) + 3.5) ** 2) + 1.5 * (trial["net"] == [64]), 120)
    assert shares(result)["lr"] > 0.25
    assert shares(result)["net"] > 0.15
    assert shares(result)["gamma"] < 0.1


def test_two_that_matter_only_together_are_found_as_a_pair() -> None:
    result = found(lambda trial: float((trial["gamma"] > 0.95) != trial["flag"]), 60)
    assert max(shares(result).values()) < 0.2
    (pair,) = result.pairs
    assert set(pair.paths) == {"gamma", "flag"}
    assert pair.share > 0.5


def test_nothing_matters() -> None:
    result = found(lambda _: 0.0, noise=1.0)
    assert max(shares(result).values()) < 0.15
    assert sum(one.by_chance for one in result.settings) >= 3
    assert not result.pairs


def test_it_says_why_there_is_nothing() -> None:
    assert importances(["a"], [{"a": 1}] * 9, range(9)).note == "9 configurations are too few; at least 10 are needed"
    assert importances([], [{}] * 20, range(20)).note == "no setting differs between trials"
    assert importances(["a"], [{"a": i % 2} for i in range(20)], [0.5] * 20).note == "all trials did equally well"
    names = [{"a": f"name {i}"} for i in range(20)]
    assert importances(["a"], names, range(20)) == Importances(note="a: too few different trials")


def test_what_was_drawn_six_times_was_tried_six_times() -> None:
    rng = np.random.default_rng(0)
    draws = [float(rng.uniform()) for _ in range(12)]
    trials = [{"drawn": draw, "net": net} for draw in draws[:6] for net in ("a", "b", "c")]
    result = importances(["drawn", "net"], trials, [t["drawn"] + (t["net"] == "a") for t in trials], ["net"])
    assert [one.paths for one in result.settings] == [("net",)]
    assert result.note == "drawn: too few different trials"
    trials = [{"drawn": draw, "net": net} for draw in draws for net in ("a", "b", "c")]
    result = importances(["drawn", "net"], trials, [t["drawn"] + (t["net"] == "a") for t in trials], ["net"])
    assert shares(result)["net"] == pytest.approx(0.7, abs=0.15)
    assert 0.1 < shares(result)["drawn"] < 0.3
    assert sum(shares(result).values()) < 1.05


def curve(*values: float) -> Curve:
    return Curve(np.arange(1.0, len(values) + 1), np.asarray(values))


def test_trials_are_compared_where_both_have_been() -> None:
    good, slow, stopped_good, stopped_bad = curve(1, 5, 9), curve(0, 1, 12), curve(2), curve(-1)
    assert fair_ranks([good, slow, stopped_good, stopped_bad], "max").tolist() == pytest.approx(
        [1 / 3, 2 / 3, 3 / 3, 0.0]
    )
    assert fair_ranks([good, slow], "min").tolist() == [1.0, 0.0]
    assert fair_ranks([good, good], "max").tolist() == [0.5, 0.5]
    assert fair_ranks([good], "max").tolist() == [0.0]


def test_who_met_the_goal_sooner_is_better() -> None:
    assert fair_ranks([curve(100, 475), curve(50, 200, 475)], "max").tolist() == [1.0, 0.0]


def test_a_trial_that_has_no_score_yet_where_another_ends_is_not_comparable() -> None:
    late = Curve(np.asarray([5.0]), np.asarray([1.0]))
    assert fair_ranks([late, curve(3, 3)], "max").tolist() == [0.5, 0.5]
