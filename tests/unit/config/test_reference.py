from __future__ import annotations

import pytest
from pydantic import BaseModel

from shoal.config.dqn import EpsilonGreedyConfig, QModelConfig
from shoal.config.experiment import ALGORITHMS, Experiment
from shoal.config.model import ModelConfig
from shoal.config.off_policy import QOptimizerConfig, ReplayConfig
from shoal.config.ppo import PPOConfig
from shoal.config.reference import config_rows, experiment_rows, meanings, stop_rows
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
    assert rows["lr"][:3] == ("lr", "number > 0, <= 1000", "0.0007")
    assert rows["num_workers"][:3] == ("num_workers", "whole number >= 0, or auto", "0")
    assert rows["model.fcnet_hiddens"][:3] == ("model.fcnet_hiddens", "list of whole number >= 1", "[64, 64]")
    assert rows["grad_clip"].type == "number > 0, or null"
    assert rows["framework"].type == "auto | numpy | torch"
    assert {row.key for row in experiment_rows()} >= {"env", "run", "stop", "checkpoint_freq", "results_dir"}
    assert "stop.timesteps_total" in {row.key for row in stop_rows()}
