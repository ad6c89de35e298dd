"""A sweep from its tree: words, defaults that follow from `stop`, experiments of trials, and back from JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.config.experiment import experiment_from
from shoal.config.sweep import (
    MethodChoice,
    Setting,
    experiment_with,
    mutated,
    sweep_from,
    sweep_of,
    sweep_tree,
    sweeps_from_file,
    trial_count,
)
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS
from shoal.errors import ConfigError

TREE: dict[str, Any] = {
    "name": "s",
    "env": "CartPole-v1",
    "stop": {"timesteps_total": 10_000},
    "config": {"lr": {"loguniform": [1e-4, 1e-2]}, "gamma": {"grid_search": [0.9, 0.99]}},
}


def sweep(**more: Any) -> Any:
    return sweep_from({**TREE, **more})


def problems(**more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        sweep(**more)
    return caught.value.problems


def test_a_sweep_is_what_its_tree_says() -> None:
    made = sweep(num_samples=3, seeds=2, max_concurrent_trials=4)
    assert made.settings == (
        Setting("config.lr", "loguniform", (1e-4, 1e-2)),
        Setting("config.gamma", "grid_search", (0.9, 0.99)),
    )
    assert (made.metric, made.mode, made.num_samples, made.seeds) == ("episode_reward_mean", "max", 3, 2)
    assert made.max_concurrent_trials == 4
    assert trial_count(made) == 2 * 3 * 2
    assert TREE["config"]["lr"] == {"loguniform": [1e-4, 1e-2]}


def test_a_trial_is_the_experiment_with_its_values() -> None:
    made = sweep(config={"lr": {"uniform": [1e-4, 1e-2]}, "model": {"fcnet_hiddens": {"choice": [[8], [16, 16]]}}})
    trial = experiment_with(made, {"config.lr": 2e-3, "config.model.fcnet_hiddens": [8]}, 7)
    assert (trial.config.lr, trial.config.model.fcnet_hiddens, trial.config.seed) == (2e-3, (8,), 7)
    assert experiment_with(made, {"config.lr": 2e-3, "config.model.fcnet_hiddens": [8]}, None).config.seed == 0


def test_algorithm_and_environment_can_be_searched() -> None:
    made = sweep(run={"grid_search": ["PPO", "TRPO"]}, env={"grid_search": ["CartPole-v1", "Acrobot-v1"]}, config={})
    assert [setting.path for setting in made.settings] == ["config.env", "run"]
    trial = experiment_with(made, {"run": "TRPO", "config.env": "Acrobot-v1"}, None)
    assert (trial.run, trial.config.env) == ("TRPO", "Acrobot-v1")


@pytest.mark.parametrize(
    "words",
    [
        {"scheduler": {"type": "asha", "brackets": 2}},
        {"scheduler": "pbt", "num_samples": 4},
        {"search_alg": {"type": "random", "seed": 3}, "seeds": 3},
    ],
)
def test_json_and_back(words: dict[str, Any]) -> None:
    made = sweep(**words)
    again = sweep_of(json.loads(json.dumps(sweep_tree(made))))
    assert again == made
    assert sweep_tree(again) == sweep_tree(made)


def test_options_of_a_scheduler_follow_from_stop() -> None:
    asha = sweep(scheduler="asha").scheduler
    assert asha == MethodChoice(
        "asha",
        {
            "time_attr": "timesteps_total",
            "max_t": 10_000,
            "grace_period": 1000,
            "reduction_factor": 4,
            "brackets": 1,
        },
    )
    iterations = sweep(scheduler="asha", stop={"training_iteration": 5, "episode_reward_mean": 100}).scheduler.options
    assert (iterations["time_attr"], iterations["max_t"], iterations["grace_period"]) == ("training_iteration", 5, 1)
    timed = sweep(scheduler="median", stop={"time_total_s": "1m"}).scheduler.options
    assert (timed["time_attr"], timed["grace_period"], timed["min_time_slice"]) == ("time_total_s", 6, 60)


def test_max_t_alone_is_a_stop_criterion() -> None:
    made = sweep(stop={"episode_reward_mean": 100}, scheduler={"type": "asha", "max_t": 5000})
    assert made.tree["stop"] == {"episode_reward_mean": 100, "timesteps_total": 5000}


def test_a_population_changes_what_is_searched_or_what_it_is_told() -> None:
    made = sweep(scheduler="pbt", num_samples=2)
    assert mutated(made) == (
        Setting("config.lr", "loguniform", (1e-4, 1e-2)),
        Setting("config.gamma", "choice", (0.9, 0.99)),
    )
    told = {"type": "pbt", "hyperparam_mutations": {"lr": [1e-3, 1e-4], "entropy_coeff": {"uniform": [0, 0.1]}}}
    made = sweep(scheduler=told, num_samples=2)
    assert [(setting.path, setting.kind) for setting in mutated(made)] == [
        ("config.lr", "choice"),
        ("config.entropy_coeff", "uniform"),
    ]
    (problem,) = problems(scheduler={**told, "hyperparam_mutations": {"lr": [1e-3, -1]}}, config={}, num_samples=2)
    assert problem == "config.lr: must be more than 0 (got -1)"


def test_keys_that_may_change_on_the_way_exist() -> None:
    from shoal.config.experiment import ALGORITHMS

    for kind in ALGORITHMS.values():
        assert set(kind.mutable) <= set(kind.model_fields)


def test_every_combination_is_checked_as_an_experiment() -> None:
    sizes = {"train_batch_size": {"grid_search": [128, 1024]}, "sgd_minibatch_size": {"grid_search": [64, 512]}}
    (problem,) = problems(config=sizes)
    assert problem.startswith("config.sgd_minibatch_size: 512 is more than train_batch_size 128")


def test_all_problems_are_told_at_once() -> None:
    told = problems(config={"lr": {"grid_search": []}, "gama": 1}, scheduler={"type": "asha", "gracc": 1}, mode="best")
    assert len(told) == 4
    assert {text.partition(":")[0] for text in told} == {"config.lr", "config.gama", "scheduler.gracc", "mode"}


def test_the_config_of_a_function_is_free() -> None:
    config = {"x": {"grid_search": [-1, 0, 1]}, "bogus": {"deep": {"uniform": [0, 1]}}, "seed": {"choice": [1, 2]}}
    made = sweep_from({"name": "f", "config": config, "stop": {"score": 3}}, check_experiment=False)
    assert [setting.path for setting in made.settings] == ["config.x", "config.bogus.deep", "config.seed"]
    assert made.metric == ""
    with pytest.raises(ConfigError, match="metric: is missing; asha compares"):
        sweep_from({"config": config, "scheduler": {"type": "asha", "max_t": 5}}, check_experiment=False)
    with pytest.raises(ConfigError, match="checkpoint_freq: unknown key"):
        sweep_from({"config": config, "checkpoint_freq": 5}, check_experiment=False)
    for key in ("a.b", "a/b", 1):
        with pytest.raises(ConfigError, match="a searched key must be text, with no dot and no slash in it"):
            sweep_from({"config": {key: {"uniform": [0, 1]}}}, check_experiment=False)


def test_one_run_refuses_the_words_of_many() -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from({**TREE, "num_samples": 2})
    (told,) = caught.value.problems
    assert told.startswith("config.lr: asks for many runs, like config.gamma, num_samples; type `shoal tune -f FILE`")


def test_problems_name_file_and_line(tmp_path: Any) -> None:
    file = tmp_path / "sweep.yml"
    file.write_text(
        "s:\n  env: CartPole-v1\n  stop: {timesteps_total: 5}\n  config:\n    lr:\n      grid_search: [1e-3, -1]\n"
    )
    with pytest.raises(ConfigError) as caught:
        sweeps_from_file(file)
    assert caught.value.problems == [f"{file}:5: s.config.lr: must be more than 0 (got -1)"]
    (made,) = sweeps_from_file(file, [("config.lr", {"choice": [1e-3, 1e-4]}), ("num_samples", 4)])
    assert (made.num_samples, made.settings) == (4, (Setting("config.lr", "choice", (1e-3, 1e-4)),))


@pytest.mark.parametrize("table", [SCHEDULERS, SEARCHERS])
def test_extras_exist(table: Any) -> None:
    from pathlib import Path

    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    for entry in table.values():
        assert bool(entry.extra) == bool(entry.module)
        assert not entry.extra or f"\n{entry.extra} = [" in text
