from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.data.batch import Episode
from shoal.data.metrics import WINDOW, EpisodeWindow, mean_interval
from shoal.data.state import State


def episodes(rewards, **metrics):
    return [Episode(0, float(r), 10 * k, dict(metrics)) for k, r in enumerate(rewards, start=1)]


def test_nothing_finished_is_none_and_not_zero() -> None:
    result = EpisodeWindow().add([])
    assert result["episodes_total"] == result["episodes_this_iter"] == 0
    for name in ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean"):
        assert result[name] is None


def test_statistics_are_over_the_last_hundred() -> None:
    window = EpisodeWindow()
    window.add(episodes([1000] * WINDOW))
    result = window.add(episodes(range(40)))
    assert result["episodes_total"] == 140
    assert result["episodes_this_iter"] == 40
    assert result["episode_reward_max"] == 1000
    assert result["episode_reward_min"] == 0
    assert result["episode_reward_mean"] == (60 * 1000 + sum(range(40))) / 100


def test_an_iteration_with_more_than_a_window_shows_all_of_its_own() -> None:
    window = EpisodeWindow()
    window.add(episodes([5000]))
    result = window.add(episodes(range(250)))
    assert result["episode_reward_min"] == 0
    assert result["episode_reward_max"] == 249
    assert window.add([])["episode_reward_min"] == 150


def test_lengths_and_custom_metrics() -> None:
    window = EpisodeWindow()
    window.add(episodes([1], drag=2.0))
    result = window.add(episodes([1], drag=4.0, lift=1.0))
    drag = {"drag_mean": 3.0, "drag_min": 2.0, "drag_max": 4.0}
    assert result["custom_metrics"] == {**drag, "lift_mean": 1.0, "lift_min": 1.0, "lift_max": 1.0}
    assert result["episode_len_mean"] == 10


def test_statistics_may_be_about_some_episodes_only() -> None:
    window = EpisodeWindow()
    window.add(episodes([1, 2]))
    new = episodes([3, 4, 5])
    window.clear()
    result = window.add(new, new[1:])
    assert (result["episodes_total"], result["episodes_this_iter"], result["episode_reward_mean"]) == (5, 3, 4.5)


def test_state_goes_through_json_and_back() -> None:
    first, second = EpisodeWindow(), EpisodeWindow()
    first.add(episodes([1, 2.5, 3], drag=0.1))
    second.set_state(State(json.loads(json.dumps(first.get_state().values))))
    assert first.add(episodes([4], drag=3)) == second.add(episodes([4], drag=3))


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        values = rng.normal(3, 2, 60).tolist()
        low, high = mean_interval(values)
        assert low is not None
        assert high is not None
        assert (high - low) / 2 == pytest.approx(1.96 * np.std(values) / np.sqrt(60), rel=0.15)
        held += low <= 3 <= high
    assert 180 <= held <= 199


def test_an_interval_needs_two_values_and_does_not_depend_on_chance() -> None:
    assert mean_interval([]) == mean_interval([1.0]) == (None, None)
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert mean_interval([1.0, 5.0, 9.0]) == mean_interval([1.0, 5.0, 9.0])
    low, high = mean_interval(np.arange(10_000.0).tolist())
    assert low is not None
    assert high is not None
    assert low < 4999.5 < high
