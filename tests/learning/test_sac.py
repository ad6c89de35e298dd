"""SAC on environments with known answers: where it aims, what a state is worth, and a pendulum."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal

SETTINGS: dict[str, Any] = {
    "seed": 1,
    "num_envs_per_worker": 4,
    "train_batch_size": 32,
    "training_intensity": 32.0,
    "timesteps_per_iteration": 200,
    "learning_starts": 100,
    "lr": 3e-3,
    "model": {"fcnet_hiddens": [16, 16]},
}


class Coin(gym.Env[Any, Any]):
    """Every step earns 1, whatever is done; the fourth ends the episode, or only cuts it."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.time == 4
        return np.zeros(1, np.float32), 1.0, over and self.ends, over and not self.ends, {}


@pytest.mark.repeats(1)
@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize(("ends", "value"), [(False, 2.0), (True, 1.6)])
def test_a_cut_episode_is_worth_what_would_have_come(ends: bool, value: float, n_step: int) -> None:
    # All states look alike. If every fourth step ends, v = 1 + 0.5 * 3/4 v, and else v = 1 + 0.5 v.
    own = {"gamma": 0.5, "tau": 0.05, "n_step": n_step, "initial_alpha": 1e-6, "normalize_rewards": False}
    with shoal.SAC(env=lambda: Coin(ends), config={**SETTINGS, **own}) as trainer:
        for _ in range(5):
            result = trainer.train()
        assert result["learner"]["mean_q"] == pytest.approx(value, abs=0.1)


class Target(gym.Env[Any, Any]):
    """One step: the nearer the action to what is seen, the better."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-3, 3, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.goal, {}

    def step(self, action: Any) -> Any:
        return self.goal, -float(abs(action - 2 * self.goal)[0]), True, False, {}


def test_a_number_is_aimed_at_and_the_entropy_is_what_it_aims_for() -> None:
    with shoal.SAC(env=Target, config={**SETTINGS, "target_entropy": -1.5}) as trainer:
        for _ in range(8):
            result = trainer.train()
        assert trainer.evaluate(episodes=40)["episode_reward_mean"] > -0.3  # at random about -1.8
        assert result["learner"]["entropy"] == pytest.approx(-1.5, abs=0.5)


def test_many_updates_for_each_step_learn_more_from_the_same_steps() -> None:
    """With `high_update_ratio` and eight times the updates, from 160 steps, of which plain SAC has learned little."""
    returns = {}
    for high in (False, True):
        own = {"high_update_ratio": high, "training_intensity": 256.0 if high else 32.0, "lr": 1e-3}
        own |= {"initial_alpha": 0.1, "timesteps_per_iteration": 160, "learning_starts": 60}
        with shoal.SAC(env=Target, config={**SETTINGS, **own}) as trainer:
            result = trainer.train()
            assert result["timesteps_total"] == 160
            assert result["learner"]["num_updates"] == (832 if high else 104)
            returns[high] = trainer.evaluate(episodes=40)["episode_reward_mean"]
    assert returns[True] > -0.2  # at random about -1.8
    assert returns[True] > returns[False] + 0.3


@pytest.mark.slow
def test_a_pendulum_stands_within_8000_steps_by_defaults() -> None:
    with shoal.SAC(env="Pendulum-v1") as trainer:
        trainer.stop_at({"timesteps_total": 8000})
        while trainer.timesteps_total < 8000:
            trainer.train()
        assert trainer.evaluate(episodes=20)["episode_reward_mean"] >= -200
