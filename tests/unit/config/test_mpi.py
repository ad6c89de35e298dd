"""The keys of environments with ranks and licences: what they take, what they imply, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from shoal.config.layout import cpus_per_worker, fits, layout_of, workers_in
from shoal.config.ppo import PPOConfig
from shoal.errors import ConfigError


def test_ranks_mean_processes_and_one_environment_per_worker() -> None:
    config = PPOConfig(env_ranks=8)
    assert config.isolates_envs
    assert config.envs_per_worker == 1
    assert not PPOConfig().isolates_envs
    assert PPOConfig().envs_per_worker == 8
    with pytest.raises(ConfigError, match=r"config.env_ranks: in the worker's own process nobody can end"):
        PPOConfig(env_ranks=8, env_isolation="none")


@pytest.mark.parametrize(
    ("given", "cpus"),
    [
        ({}, 1),
        ({"num_cpus_per_worker": 0.5}, 0.5),
        ({"env_ranks": 8}, 8),
        ({"env_ranks": 8, "num_envs_per_worker": 4}, 32),
        ({"env_ranks": 2, "num_cpus_per_worker": 6}, 6),
    ],
)
def test_a_worker_has_the_cpus_of_its_ranks(given: dict[str, Any], cpus: float) -> None:
    config = PPOConfig(**given, num_workers=3, evaluation_interval=1, evaluation_num_workers=1)
    assert cpus_per_worker(config) == cpus
    assert layout_of(config).workers == ({"CPU": cpus},) * 3
    assert layout_of(config).cpus == 4 * cpus
    assert workers_in(config, 10 * cpus) == 9


def test_bundles_fit_on_hosts_or_not() -> None:
    assert fits([{"CPU": 8}] * 3, [{"CPU": 12}] * 3)
    assert not fits([{"CPU": 8}] * 4, [{"CPU": 12}] * 3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"num_workers": 3}, "3 workers of 8 environments are 24, and 16 may exist"),
        ({"num_envs_per_worker": 20}, "20 environments are 20"),
        (
            {"num_workers": 1, "evaluation_interval": 1, "evaluation_duration": 20, "env_task_fn": "m.f"},
            "8 environments and 8 of evaluation and 1 of env_task_fn are 17",
        ),
        ({"num_workers": 2, "evaluation_interval": 5, "evaluation_duration": 3}, "are 19"),
    ],
)
def test_more_environments_than_licences_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=rf"config.max_concurrent_envs: .*{told}"):
        PPOConfig(**given, max_concurrent_envs=16)


def test_auto_stays_below_the_licences() -> None:
    config = PPOConfig(num_workers="auto", max_concurrent_envs=30, evaluation_interval=1, evaluation_duration=5)
    assert workers_in(config, 100) == 3  # 24 environments, and 5 of evaluation
    assert PPOConfig(num_workers=2, max_concurrent_envs=16).num_envs == 16


@pytest.mark.parametrize("wrong", [{"env_ranks": -1}, {"env_resets_per_s": 0}, {"max_concurrent_envs": 0}])
def test_numbers_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    (key,) = wrong
    with pytest.raises(ConfigError, match=f"config.{key}"):
        PPOConfig(**wrong)


def test_an_evaluation_by_hand_counts_too() -> None:
    trainer = shoal.PPO(env="CartPole-v1", config={"num_envs_per_worker": 2, "max_concurrent_envs": 3, "horizon": 5})
    try:
        assert trainer.evaluate(episodes=1)["episodes_this_iter"] == 1
        with pytest.raises(ConfigError, match=r"2 environments and 2 of evaluation are 4, and 3 may exist"):
            trainer.evaluate(episodes=2)
    finally:
        trainer.stop()
