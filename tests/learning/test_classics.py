"""Known tasks with default settings: the ratio environment, CartPole, Pendulum, Pong's RAM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal

RATIO = f"{Path(__file__).parents[2] / 'examples' / 'theta' / 'ratio_env.py'}:RatioEnv"


def reaches(env: Any, goal: float, timesteps: int, algorithm: str = "PPO", **settings: Any) -> bool:
    """Whether the mean return over the last 100 episodes reaches the goal within so many steps."""
    with getattr(shoal, algorithm)(env=env, config=settings) as trainer:
        while trainer.timesteps_total < timesteps:
            result = trainer.train()
            if result["episode_reward_mean"] >= goal:
                return True
    return False


def test_the_ratio_environment_trains_with_no_configuration() -> None:
    with shoal.PPO(env=RATIO) as trainer:
        results = [trainer.train() for _ in range(10)]
        evaluation = trainer.evaluate(episodes=8)
    assert results[-1]["env_failures_total"] == 0
    assert results[0]["episode_len_mean"] == 4
    means = [r["episode_reward_mean"] for r in results]
    assert np.mean(means[:2]) < -2  # at random
    assert np.mean(means[-2:]) > -0.5
    assert evaluation["episode_reward_mean"] > -0.1


@pytest.mark.parametrize("algorithm", ["PPO", "TRPO"])
def test_cartpole_learns_with_default_settings(algorithm: str) -> None:
    assert reaches("CartPole-v1", 195, 60_000, algorithm)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_cartpole_learns_from_workers_that_do_not_wait() -> None:
    assert reaches("CartPole-v1", 195, 60_000, "APPO", num_workers=2, num_cpus_per_worker=0.5, seed=1)


@pytest.mark.repeats(0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "TRPO"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_is_solved(seed: int, algorithm: str) -> None:
    assert reaches("CartPole-v1", 475, 500_000, algorithm, seed=seed)


def test_a_native_vector_environment_learns() -> None:
    make = gym.make_vec
    assert reaches(lambda: make("CartPole-v1", 8, vectorization_mode="vector_entry_point"), 195, 60_000)


def test_pendulum_takes_bounded_actions() -> None:
    with shoal.PPO(env="Pendulum-v1", config={"observation_filter": "MeanStdFilter"}) as trainer:
        results = [trainer.train() for _ in range(2)]
    assert results[-1]["env_failures_total"] == 0
    assert -2000 < results[-1]["episode_reward_mean"] < 0


@pytest.mark.repeats(1)
@pytest.mark.parametrize("algorithm", ["PPO", "TRPO"])
@pytest.mark.parametrize(("env", "env_config"), [("ALE/Pong-v5", {"obs_type": "ram"}), ("Pong-ram-v0", {})])
def test_pong_plays_from_its_memory(env: str, env_config: dict[str, Any], algorithm: str) -> None:
    pytest.importorskip("ale_py")
    settings = {"env_config": env_config, "train_batch_size": 128, "num_envs_per_worker": 2}
    with getattr(shoal, algorithm)(env=env, config=settings) as trainer:
        results = [trainer.train() for _ in range(2)]
        assert trainer.get_policy().obs_spec.vector_size == 128
    assert results[-1]["timesteps_total"] == 256
    assert results[-1]["env_failures_total"] == 0


@pytest.mark.repeats(1)
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_cartpole_learns_in_any_unit_of_reward(algorithm: str) -> None:
    def thousandfold(_: Any) -> gym.Env[Any, Any]:
        return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 1000 * float(reward))

    assert reaches(thousandfold, 150_000, 40_000, algorithm)
