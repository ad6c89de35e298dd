"""Keys that have nothing to do are accepted, null says nothing where classic RLlib writes it so, and defaults fit."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.experiment import ALGORITHMS, algorithm_config, as_said, config_tree, default_config, default_model
from shoal.config.sweep import sweep_from, trial_count
from shoal.errors import ConfigError

GUARDS: list[tuple[str, dict[str, Any]]] = [
    ("PPO", {"num_workers": 0, "ignore_worker_failures": True}),
    ("PPO", {"max_worker_restarts": 3, "recreate_failed_workers": False}),
    ("PPO", {"num_cpus_per_learner": 2, "num_cpus_per_worker": 2}),
    ("PPO", {"curriculum": {"min_episodes": 3}}),
    ("DQN", {"clip_actions": False, "normalize_actions": False}),
]
"""What only guards, or tells the size of what is not there."""

TURNED_OFF: list[tuple[str, dict[str, Any]]] = [
    ("PPO", {"kl_coeff": 0, "kl_target": 0.02}),
    ("PPO", {"use_gae": False, "lambda_": 1.0}),
    ("PPO", {"use_gae": False, "use_critic": False, "vf_loss_coeff": 1.0, "vf_clip_param": 10.0}),
    ("TRPO", {"use_gae": False, "use_critic": False, "lr": 1e-2, "num_sgd_iter": 3, "sgd_minibatch_size": 64}),
    ("PPO", {"num_workers": 0, "sample_async": True}),
    ("PPO", {"evaluation_interval": None, "evaluation_parallel_to_training": True}),
    ("PPO", {"model": {"use_lstm": False, "lstm_cell_size": 256, "max_seq_len": 9}}),
    ("PPO", {"model": {"use_attention": False, "attention_dim": 32}}),
    ("PPO", {"model": {"custom_model": None, "custom_model_config": {"width": 3}}}),
    ("DQN", {"replay_buffer_config": {"prioritized_replay": False, "prioritized_replay_alpha": 0.5}}),
    ("DQN", {"dueling": False, "model": {"vf_share_layers": False}}),
]
"""Details of what the same configuration turns off explicitly, as a search over the switch has them."""


@pytest.mark.parametrize(("run", "config"), [*GUARDS, *TURNED_OFF])
def test_what_has_nothing_to_do_is_accepted_and_can_be_read_back(run: str, config: dict[str, Any]) -> None:
    checked = algorithm_config(run, config)
    assert config_tree(algorithm_config(run, config_tree(checked))) == config_tree(checked)


def test_a_switch_can_be_searched_together_with_its_details() -> None:
    model = {"use_lstm": {"grid_search": [True, False]}, "lstm_cell_size": {"choice": [32, 128]}}
    tree = {"env": "X-v0", "stop": {"timesteps_total": 100}, "num_samples": 2, "config": {"model": model}}
    assert trial_count(sweep_from(tree)) == 4


def test_memory_that_is_off_reads_nothing() -> None:
    off = {"use_lstm": False, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    model = algorithm_config("PPO", {"model": {**off, "use_attention": True}}).model
    assert (model.sees_prev_action, model.sees_prev_reward) == (False, False)
    model = algorithm_config("PPO", {"model": {**off, "use_lstm": True}}).model
    assert (model.sees_prev_action, model.sees_prev_reward) == (True, True)
    assert algorithm_config("PPO", {"model": {**off, "custom_model": "mine"}}).model.sees_prev_action


NULLS: list[tuple[str, str]] = [
    ("PPO", "evaluation_duration evaluation_interval seed env_config model optimizer exploration_config"),
    ("PPO", "evaluation_config curriculum randomize callbacks env_task_fn clip_rewards horizon lr_schedule"),
    ("PPO", "entropy_coeff_schedule vf_clip_param"),
    ("DQN", "training_intensity replay_buffer_config lr_schedule"),
]


@pytest.mark.parametrize(("run", "keys"), NULLS)
def test_null_is_the_default(run: str, keys: str) -> None:
    assert algorithm_config(run, dict.fromkeys(keys.split())) == algorithm_config(run, {})


def test_null_is_off_or_refused_where_it_would_mislead() -> None:
    assert algorithm_config("PPO", {"grad_clip": None}).grad_clip is None
    for key in ("lr", "use_gae", "train_batch_size", "num_workers"):
        with pytest.raises(ConfigError, match=f"config.{key}: .*(got null)"):
            algorithm_config("PPO", {key: None})


@pytest.mark.parametrize("run", ALGORITHMS)
def test_the_whole_dictionary_of_defaults_is_accepted(run: str) -> None:
    default = default_config(run)
    assert algorithm_config(run, default) == algorithm_config(run, {})
    assert as_said(run, default) == {}


def test_in_a_copy_of_the_defaults_only_changes_count() -> None:
    default = default_config("PPO")
    config = default.copy()
    config["train_batch_size"] = 40
    config["env_config"]["Scalar"] = 1
    config["model"]["fcnet_hiddens"] = [32]
    assert default == default_config("PPO")
    said = as_said("PPO", config)
    assert said == {"train_batch_size": 40, "env_config": {"Scalar": 1}, "model": {"fcnet_hiddens": [32]}}
    assert algorithm_config("PPO", said).sgd_minibatch_size == 40
    config["model"]["lstm_cell_size"] = 32
    with pytest.raises(ConfigError, match="lstm_cell_size: it has no effect; set use_lstm: true"):
        algorithm_config("PPO", as_said("PPO", config))
    assert as_said("PPO", {"lr": 1e-3}) == {"lr": 1e-3}


def test_the_defaults_of_models_are_a_model() -> None:
    assert algorithm_config("PPO", {"model": default_model()}) == algorithm_config("PPO", {})
