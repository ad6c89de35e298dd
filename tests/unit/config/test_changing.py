"""A changed configuration is checked again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from gymnasium.wrappers import TimeLimit

import shoal
from shoal.config.changing import changed, unchecked
from shoal.config.experiment import algorithm_config, experiment_from, with_settings
from shoal.errors import ConfigError


@dataclasses.dataclass
class Case:
    """Something of the user's own."""

    depth: float


def task(result: dict[str, Any], task: Any) -> Any:
    return task


RICH = {
    "env": lambda config: None,
    "env_config": {"case": Case(2.0), "sizes": [1, 2]},
    "wrappers": [{TimeLimit: {"max_episode_steps": 5}}],
    "env_task_fn": task,
    "callbacks": shoal.DefaultCallbacks,
    "lr_schedule": [[0, 1e-3], [100, 1e-4]],
    "model": {"fcnet_hiddens": [32], "vf_share_layers": True},
    "randomize": {"env_config": {"mass": {"uniform": [0, 1]}}},
    "evaluation_config": {"explore": False},
    "train_batch_size": 50,
    "lambda_": 0.9,
}


def test_nothing_else_changes() -> None:
    config = algorithm_config("PPO", RICH)
    again = changed(config)
    assert again == config
    assert again.model_fields_set == config.model_fields_set
    assert again.env_config["case"] is config.env_config["case"]
    other = changed(config, lr_schedule=None, lr=0.5)
    assert (other.lr, other.lr_schedule, other.sgd_minibatch_size) == (0.5, None, 50)


def test_values_keys_and_what_does_not_go_together_are_refused() -> None:
    config = algorithm_config("PPO", {"env": "CartPole-v1"})
    for values, words in (
        ({"lr": -1}, "config.lr: must be more than 0"),
        ({"larning_rate": 1}, "config.larning_rate: unknown key"),
        ({"num_workers": 1, "num_learners": 2}, "each of 2 learners needs a worker"),
    ):
        with pytest.raises(ConfigError, match=words):
            changed(config, **values)
    assert unchecked(config, num_workers=1, num_learners=2).num_learners == 2
    with pytest.raises(AssertionError):
        unchecked(config, larning_rate=1)


def test_an_experiment_is_checked_as_a_whole() -> None:
    experiment = experiment_from({"name": "x", "env": "CartPole-v1", "stop": {"time_total_s": "90m"}})
    other = changed(experiment, restore="there")
    assert (other.restore, other.stop) == ("there", {"time_total_s": 5400.0})
    assert with_settings(experiment, {"num_workers": 3}).config.num_workers == 3
    with pytest.raises(ConfigError, match=r"stop.evaluation/episode_reward_mean: there is no evaluation"):
        changed(experiment, stop={"evaluation/episode_reward_mean": 3})


def test_workers_that_follow_from_auto_are_checked_but_not_against_written_numbers() -> None:
    apart = algorithm_config("PPO", {"env": "CartPole-v1", "num_workers": "auto", "num_learners": 2})
    with pytest.raises(ConfigError, match="each of 2 learners needs a worker"):
        apart.with_worker_count(1)
    asked = {"env": "CartPole-v1", "rollout_fragment_length": 50, "train_batch_size": 1000, "num_workers": "auto"}
    resolved = algorithm_config("PPO", asked).with_worker_count(2)
    assert resolved.num_workers == 2
    # What is saved can be read again, and an iteration is as long as it was.
    whole = resolved.with_whole_fragments()
    assert (whole.train_batch_size, whole.steps_per_iteration) == (1600, resolved.steps_per_iteration)
    assert changed(whole) == whole


def test_there_is_no_third_way() -> None:
    folder = Path(shoal.__file__).parent
    files = [file for file in folder.rglob("*.py") if ".model_copy(" in file.read_text()]
    assert [str(file.relative_to(folder)) for file in files] == ["config/changing.py"]
