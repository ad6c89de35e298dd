from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_algorithm import ANY_ALGORITHM
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config import yaml_files
from shoal.config.experiment import (
    Experiment,
    algorithm_config,
    as_tree,
    experiment_from,
    experiment_yaml,
    experiments_from_file,
    experiments_yaml,
)
from shoal.config.overrides import parse_override
from shoal.config.ppo import PPOConfig
from shoal.errors import ConfigError

SEED_FILE = """\
custom_env:
    env: custom_env.CustomEnv
    run: PPO
    checkpoint_freq: 1
    stop:
        timesteps_total: 10000
"""

FULL_TREE: dict[str, Any] = {
    "name": "ratio",
    "env": "ratio_env.py:Ratio",
    "run": "PPO",
    "stop": {"timesteps_total": 1e5, "time_total_s": "1-12:00:00", "learner/kl": 0.5, "custom_metrics/drag": -2},
    "checkpoint_freq": 2,
    "checkpoint_at_end": False,
    "keep_checkpoints_num": 3,
    "results_dir": "$SCRATCH/runs",
    "config": {
        "env_config": {"Scalar": 0.14, "mesh": {"n": [1, 2]}, "note": "no", "empty": None},
        "num_workers": 3,
        "num_envs_per_worker": 4,
        "rollout_fragment_length": 20,
        "train_batch_size": 960,
        "lr_schedule": [[0, 3e-4], [100000, 0]],
        "clip_rewards": True,
        "evaluation_interval": 5,
        "evaluation_config": {"explore": True, "seed": 7},
        "model": {"fcnet_hiddens": [32], "conv_filters": [[16, [8, 8], 4]], "post_fcnet_hiddens": []},
        "optimizer": {"eps": 1e-8},
        "vf_clip_param": 10,
        "grad_clip": None,
    },
}


class MyEnv:
    pass


class MyModel:
    pass


def make_env(config: dict[str, Any]) -> MyEnv:
    return MyEnv()


def test_the_seeds_file_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "custom.yml"
    path.write_text(SEED_FILE)
    (experiment,) = experiments_from_file(path)
    assert experiment.name == "custom_env"
    assert experiment.run == "PPO"
    assert experiment.config.env == "custom_env.CustomEnv"
    assert experiment.checkpoint_freq == 1
    assert experiment.stop == {"timesteps_total": 10000}
    assert isinstance(experiment.config, PPOConfig)


def test_several_experiments_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "two.yml"
    path.write_text("a: {env: X-v0, config: {lr: 1e-2}}\nb: {env: Y-v0}\n")
    changes = [parse_override("config.lr=1e-3"), parse_override("stop.custom_metrics/a.b=3"), ("env", "Z-v0")]
    a, b = experiments_from_file(path, changes)
    assert (a.name, b.name) == ("a", "b")
    assert a.config.lr == b.config.lr == 1e-3
    assert a.config.env == b.config.env == "Z-v0"
    assert a.stop == {"custom_metrics/a.b": 3.0}


def test_problems_in_a_file_have_their_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(
        SEED_FILE + "    config:\n        lr: fast\n        model: {fcnet_hidens: [1]}\nother:\n    run: DQM\n"
    )
    with pytest.raises(ConfigError) as caught:
        experiments_from_file(path, [("config.gamma", 2)])
    assert caught.value.problems == [
        "config.gamma: must be at most 1 (got 2)",
        f"{path}:8: custom_env.config.lr: must be a number (got 'fast')",
        f"{path}:9: custom_env.config.model.fcnet_hidens: unknown key; did you mean config.model.fcnet_hiddens?",
        f"{path}:10: other.env: is missing; write env: with an id such as CartPole-v1, module:Class or file.py:Class",
        f"{path}:11: other.run: must be {ANY_ALGORITHM} (got 'DQM'); did you mean DQN?",
    ]


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("env: CartPole-v1\nrun: PPO\n", ":1: the experiment has no name; write a name and under it"),
        ("stop: {timesteps_total: 1}\nrun: PPO\n", ":2: the experiment has no name"),
        ("", "is empty; write a name and under it"),
        ("- a\n", "has no experiment in it"),
        ("CartPole-v1", "has no experiment in it"),
        ("x: 3", ":1: x: must be an experiment with env, run, stop and config (got 3)"),
        ("x:", "x: must be an experiment"),
        ("1: {env: X-v0}", "name must be text; put it in quotes"),
        ("x: {env: X-v0, name: y}", "x.name: unknown key; the experiment's name is the top-level key"),
        ("a/b: {env: X-v0}", "becomes the name of a folder"),
        ("x: {env: 3}", ":1: x.config.env: must be an environment's id"),
    ],
)
def test_files_of_the_wrong_form(tmp_path: Path, text: str, fragment: str) -> None:
    path = tmp_path / "x.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        experiments_from_file(path)
    assert fragment in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_resolved_experiment_round_trips(tmp_path: Path) -> None:
    experiment = experiment_from(FULL_TREE)
    assert experiment_from(as_tree(experiment)) == experiment
    path = tmp_path / "config.yaml"
    path.write_text(experiment_yaml(experiment))
    assert experiments_from_file(path) == [experiment]
    assert experiment.stop["time_total_s"] == 129600
    assert experiment.config.model.conv_filters == ((16, 8, 4),)


def test_the_callers_tree_is_left_alone() -> None:
    before = repr(FULL_TREE)
    experiment_from(FULL_TREE, [("config.model.fcnet_hiddens", [8]), ("config.env_config.mesh.n", 3), ("env", "X-v0")])
    assert repr(FULL_TREE) == before


def test_classes_and_callables_become_their_names() -> None:
    tree = as_tree(experiment_from({"env": MyEnv, "config": {"model": {"custom_model": MyModel}}}))
    assert tree["config"]["env"] == f"{__name__}:MyEnv"
    assert tree["config"]["model"]["custom_model"] == f"{__name__}:MyModel"
    for env in (make_env, functools.partial(make_env, {})):
        assert as_tree(experiment_from({"env": env}))["config"]["env"] == f"{__name__}:make_env"


def test_numpy_numbers_are_numbers_and_become_plain() -> None:
    config = algorithm_config(
        "PPO",
        {
            "lr": np.float32(0.5),
            "num_workers": np.int64(2),
            "gamma": np.float64(0.9),
            "env_config": {"a": np.arange(3)},
        },
    )
    assert (config.lr, config.num_workers) == (0.5, 2)
    assert type(config.num_workers) is int
    tree = as_tree(Experiment(config=config))
    assert tree["config"]["env_config"] == {"a": [0, 1, 2]}
    assert type(tree["config"]["gamma"]) is float


def test_what_no_file_can_hold_is_named() -> None:
    experiment = experiment_from({"env": "X-v0", "config": {"env_config": {"mesh": object()}}})
    with pytest.raises(ConfigError, match=r"config\.env_config\.mesh: a object cannot be written to a file"):
        as_tree(experiment)


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    assert algorithm_config("PPO", {"train_batch_size": 4e3}).train_batch_size == 4000


def test_steps_are_shared_out_over_all_environments() -> None:
    config = algorithm_config("PPO", {"num_workers": 3, "num_envs_per_worker": 4, "train_batch_size": 100})
    assert (config.num_envs, config.fragment_length, config.steps_per_iteration) == (12, 9, 9)
    explicit = {"num_envs_per_worker": 4, "rollout_fragment_length": 25, "train_batch_size": 200}
    config = algorithm_config("PPO", explicit)
    assert (config.fragment_length, config.steps_per_iteration) == (25, 50)


def test_evaluation_may_be_a_stop_criterion() -> None:
    tree = {"env": "X-v0", "stop": {"evaluation/episode_reward_mean": 3}, "config": {"evaluation_interval": 1}}
    assert experiment_from(tree).stop == {"evaluation/episode_reward_mean": 3}


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("config.lr", "write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("config..lr=3", "write KEY=VALUE"),
        ("config.lr=", "--set config.lr: a value is missing after '='"),
        ("config.lr=[1", "--set config.lr: value '[1':1:3: expected"),
    ],
)
def test_overrides_of_the_wrong_form(text: str, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("lr=fast", "config.lr: must be a number (got 'fast')"),
        (
            "type=adam",
            "type: several keys have that name; write config.optimizer.type or config.exploration_config.type",
        ),
        ("learning_rate=3", "did you mean config.lr?"),
        ("config.lr.x=3", "config.lr.x: config.lr has no keys of its own (got 0.5)"),
        ("config.lrr=3", "config.lrr: unknown key; did you mean config.lr?"),
        ("config=3", "config: must be a mapping of keys (got 3)"),
    ],
)
def test_overrides_of_the_wrong_key(text: str, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from({"env": "X-v0", "config": {"lr": 0.5}}, [parse_override(text)])
    assert fragment in str(caught.value)


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [10**400, -1, 2**63, 1e308, float("nan"), float("-inf"), "auto", "", "\0", b"x", (), object(), len]
    ),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.floats(), st.none(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.integers(), max_size=2),
)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_a_mutated_tree_is_an_experiment_or_a_config_error(data: st.DataObject) -> None:
    tree = as_tree(experiment_from(FULL_TREE))
    for _ in range(data.draw(st.integers(1, 3))):
        here: Any = tree
        while True:
            key = data.draw(st.sampled_from(list(here)))
            if not isinstance(here[key], dict) or not here[key] or data.draw(st.booleans()):
                break
            here = here[key]
        action = data.draw(st.sampled_from(["value", "delete", "rename", "add"]))
        if action == "value":
            here[key] = data.draw(ODD_VALUES)
        elif action == "add":
            here[data.draw(st.one_of(st.text(max_size=6), st.integers(), st.none()))] = data.draw(ODD_VALUES)
        elif action == "rename":
            here[str(key) + data.draw(st.text(max_size=2))] = here.pop(key)
        else:
            del here[key]
        if not here:
            break
    outcome: Experiment | list[str]
    try:
        outcome = experiment_from(tree)
    except ConfigError as error:
        outcome = error.problems
    if isinstance(outcome, list):
        assert outcome
        assert all(problem and problem.isprintable() for problem in outcome)
    else:
        assert isinstance(outcome, Experiment)


@pytest.mark.parametrize("run", ["PPO", "TRPO", "DQN", "SAC"])
def test_what_samples_ahead_says_that_it_does_not_resume_exactly(run: str) -> None:
    ahead = algorithm_config(run, {"env": "X-v0", "num_workers": 2, "sample_async": True})
    (note,) = ahead.timing_notes()
    assert re.search("a resumed run does not repeat it exactly|be neither repeated nor resumed exactly", note)
    assert not algorithm_config(run, {"env": "X-v0", "num_workers": 2}).timing_notes()


def test_thousands_of_experiments_are_written_as_each_would_be() -> None:
    many = [experiment_from({"env": "X-v0", "name": f"n{at}", "config": {"seed": at}}) for at in range(30)]
    yaml_files._item_text.cache_clear()
    written, counts = [], []
    for text in experiments_yaml(many):
        written.append(text)
        counts.append(yaml_files._item_text.cache_info().misses)
    assert [text.rstrip() for text in written] == [experiment_yaml(each).rstrip() for each in many]
    # Only the first writes what they have in common, and the others look it up.
    assert counts[-1] - counts[0] <= 2 * len(many) < counts[0] * len(many) / 10
