from __future__ import annotations

import pytest
from pydantic import BaseModel

from shoal.config.dqn import EpsilonGreedyConfig, QModelConfig
from shoal.config.experiment import ALGORITHMS, Experiment, as_tree, experiment_from
from shoal.config.model import ModelConfig
from shoal.config.off_policy import QOptimizerConfig, ReplayConfig
from shoal.config.ppo import PPOConfig
from shoal.config.reference import config_rows, experiment_rows, file_schema, meanings, stop_rows
from shoal.config.sections import (
    CurriculumConfig,
    EvaluationConfig,
    ExplorationConfig,
    NoiseConfig,
    OptimizerConfig,
    RandomizeConfig,
)
from shoal.config.settings import key_paths


@pytest.mark.parametrize(
    "kind",
    [
        *ALGORITHMS.values(),
        ModelConfig,
        QModelConfig,
        OptimizerConfig,
        QOptimizerConfig,
        ExplorationConfig,
        NoiseConfig,
        EpsilonGreedyConfig,
        ReplayConfig,
        EvaluationConfig,
        CurriculumConfig,
        RandomizeConfig,
        Experiment,
    ],
)
def test_every_key_has_a_meaning(kind: type[BaseModel]) -> None:
    assert {name for name, meaning in meanings(kind).items() if len(meaning) > 10} >= set(kind.model_fields)


def test_rows_are_all_the_keys() -> None:
    assert {f"config.{row.key}" for row in config_rows("PPO")} == set(key_paths(PPOConfig))
    assert {f"config.{row.key}" for row in config_rows("DQN")} == set(key_paths(ALGORITHMS["DQN"]))
    rows = {row.key: row for row in config_rows("PPO")}
    assert rows["lr"][:3] == ("lr", "number > 0", "0.0007")
    assert rows["num_workers"][:3] == ("num_workers", "whole number >= 0, or auto", "0")
    assert rows["model.fcnet_hiddens"][:3] == ("model.fcnet_hiddens", "list of whole number >= 1", "[64, 64]")
    assert rows["grad_clip"].type == "number > 0, or null"
    assert rows["framework"].type == "auto | numpy | torch"
    assert {row.key for row in experiment_rows()} >= {"env", "run", "stop", "checkpoint_freq", "results_dir"}
    assert "stop.timesteps_total" in {row.key for row in stop_rows()}


def test_the_schema_accepts_what_we_accept() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = file_schema("PPO")
    own = {
        "curriculum": {"stages": [{"task": 1, "until": {"episode_len_mean": "<= 3"}}, {"task": [True, {"a": "b"}]}]},
        "randomize": {"options": {"a": {"uniform": [0, 1]}}, "cases": "a.csv"},
        "evaluation_config": {"task": 3},
    }
    stop = {"timesteps_total": 3, "custom_metrics/a": 1}
    tree = as_tree(experiment_from({"env": "X-v0", "stop": stop, "config": own}))
    seed = {"env": "custom_env.CustomEnv", "run": "PPO", "checkpoint_freq": 1, "stop": {"timesteps_total": 10000}}
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({tree.pop("name"): tree, "custom_env": seed}, schema)
    for bad in ({"config": {"lrr": 1}}, {"config": {"lr": -1}}, {"stop": {"steps": 1}}, {"run": "ppo"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"x": bad}, schema)
