from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.config.episode_variation import comparison, task_value
from shoal.config.experiment import as_tree, experiment_from


def test_tasks_are_what_json_can_say() -> None:
    task = {"level": np.int64(3), "gap": np.float32(0.5), "names": ["a", True, 2.5]}
    plain = task_value(task)
    assert plain == {"level": 3, "gap": 0.5, "names": ["a", True, 2.5]}
    assert json.loads(json.dumps(plain)) == plain
    assert (task_value(False), task_value(0), task_value("x")) == (False, 0, "x")
    for bad in (None, (1, 2), {1}, np.zeros(2), float("inf"), {"a": None}, {1: 2}, object()):
        with pytest.raises(ValueError):
            task_value(bad)


def test_limits_may_be_from_above() -> None:
    assert comparison("episode_len_mean", 3) == (">=", 3.0)
    assert comparison("episode_len_mean", ">= 3") == (">=", 3.0)
    assert comparison("episode_len_mean", "<=2.5") == ("<=", 2.5)
    assert comparison("time_total_s", "90m") == (">=", 5400.0)


def test_a_curriculum_comes_back_from_its_file() -> None:
    until = {"episode_reward_mean": ">= 0.8", "episode_len_mean": "<= 20", "time_total_s": "1h"}
    config = {
        "curriculum": {"stages": [{"task": {"a": 1}, "until": until}, {"task": 2}]},
        "randomize": {"options": {"w": {"choice": ["a", 1]}}, "env_config": {"m": {"normal": [0, 1]}}},
    }
    first = experiment_from({"env": "X-v0", "config": config})
    tree = json.loads(json.dumps(as_tree(first)))
    assert experiment_from(tree) == first
    until = {"episode_reward_mean": 0.8, "episode_len_mean": "<= 20.0", "time_total_s": 3600.0}
    assert tree["config"]["curriculum"]["stages"] == [{"task": {"a": 1}, "until": until}, {"task": 2, "until": {}}]
