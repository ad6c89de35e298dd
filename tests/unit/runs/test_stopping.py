"""Stop criteria, their progress, and the default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.runs.stopping import default_stop, missing_metric, nearest_stop, stop_reason


@pytest.mark.parametrize(
    ("result", "stop", "reason"),
    [
        ({"episode_reward_mean": 481.23}, {"episode_reward_mean": 475.0}, "episode_reward_mean 481.2 >= 475"),
        ({"timesteps_total": 100}, {"timesteps_total": 100.0}, "timesteps_total 100 >= 100"),
        ({"timesteps_total": 99}, {"timesteps_total": 100.0}, None),
        ({"episode_reward_mean": float("nan")}, {"episode_reward_mean": -1e9}, None),
        ({"episode_reward_mean": None}, {"episode_reward_mean": -1e9}, None),
        ({}, {"episode_reward_mean": -1e9}, None),
        ({"learner": {"kl": np.float32(0.5)}}, {"learner/kl": 0.1}, "learner/kl 0.5 >= 0.1"),
        ({"learner/kl": 0.25}, {"learner/kl": 0.1}, "learner/kl 0.25 >= 0.1"),
        ({"a": 1}, {}, None),
    ],
)
def test_reason(result: dict[str, Any], stop: dict[str, float], reason: str | None) -> None:
    assert stop_reason(result, stop) == reason


def test_a_metric_that_no_episode_has_is_told_with_the_nearest() -> None:
    result = {"episodes_this_iter": 2, "custom_metrics": {"miss_mean": 1.0}}
    why = missing_metric("custom_metrics/mis_mean", result)
    assert why == "no episode so far has this metric; did you mean custom_metrics/miss_mean?"
    assert missing_metric("custom_metrics/miss_mean", result) is None
    assert missing_metric("episode_reward_mean", result) is None
    assert missing_metric("custom_metrics/x", {"episodes_this_iter": 0}) is None, "it may still come"
    assert missing_metric("custom_metrics/x", {"episodes_this_iter": 1, "custom_metrics": {}}) is not None
    assert missing_metric("evaluation/custom_metrics/x", result) is None, "there was no evaluation"
    assert missing_metric("evaluation/custom_metrics/x", {"evaluation": result}) is not None


def at(second: float, **values: float) -> dict[str, float]:
    return {"time_total_s": second, **values}


def test_eta_of_a_counter() -> None:
    progress = nearest_stop([at(1, timesteps_total=100), at(2, timesteps_total=200)], {"timesteps_total": 1000})
    assert progress is not None
    assert (progress.fraction, progress.eta_s) == (0.2, 8.0)


def test_eta_of_one_result() -> None:
    progress = nearest_stop([at(2, timesteps_total=100)], {"timesteps_total": 200})
    assert progress is not None
    assert progress.eta_s == 2.0


def test_eta_of_a_trend() -> None:
    rising = [at(t, episode_reward_mean=20.0 + 10 * t) for t in range(5)]
    progress = nearest_stop(rising, {"episode_reward_mean": 100, "time_total_s": 1000})
    assert progress is not None
    assert (progress.name, progress.eta_s, progress.fraction) == ("episode_reward_mean", 4.0, 0.5)
    falling = [at(t, episode_reward_mean=20.0 - t) for t in range(5)]
    progress = nearest_stop(falling, {"episode_reward_mean": 100})
    assert progress is not None
    assert (progress.eta_s, progress.fraction) == (None, 0.0)


def test_a_criterion_that_is_met_is_whole() -> None:
    progress = nearest_stop([at(1, episode_reward_mean=5.0)], {"episode_reward_mean": -10.0})
    assert progress is not None
    assert (progress.fraction, progress.eta_s) == (1.0, 0.0)


def test_no_progress_without_criterion_or_result() -> None:
    assert nearest_stop([], {"timesteps_total": 1}) is None
    assert nearest_stop([at(1)], {}) is None
    assert nearest_stop([at(1)], {"episode_reward_mean": 1}) is None


def test_default_stop() -> None:
    assert default_stop("CartPole-v1") == {"episode_reward_mean": 475.0}
    assert default_stop("Pendulum-v1") == {}
    assert default_stop("my_module:MyEnv") == {}
    assert default_stop(object) == {}
