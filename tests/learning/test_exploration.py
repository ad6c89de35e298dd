"""Each exploration learns: the right answer is in the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal

STEPS = 4
ON_POLICY: dict[str, Any] = {"seed": 1, "num_envs_per_worker": 8, "train_batch_size": 512}
SPREAD = {
    "type": "GaussianNoise",
    "stddev_schedule": {"type": "exponential", "initial": 1, "final": 0.1, "timesteps": 6000},
}
FALLING = {"type": "EpsilonGreedy", "epsilon_schedule": {"type": "cosine", "initial": 1, "final": 0, "timesteps": 3000}}


class Told(gym.Env[Any, Any]):
    """The right action is the observation, in a Box or by its sign."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, continuous: bool = True) -> None:
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.continuous = continuous

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        right = -abs(float(action[0]) - self.seen) if self.continuous else float(action == (self.seen > 0)) - 1
        self.time += 1
        return self._look(), right, self.time == STEPS, False, {}

    def _look(self) -> Any:
        self.seen = float(self.np_random.uniform(-1, 1))
        return np.array([self.seen], np.float32)


@pytest.mark.repeats(1)
@pytest.mark.parametrize("algorithm", ["PPO", "TRPO"])
@pytest.mark.parametrize("exploration", [{"type": "OrnsteinUhlenbeckNoise"}, SPREAD], ids=["correlated", "given"])
def test_continuous_actions(algorithm: str, exploration: dict[str, Any]) -> None:
    config = {**ON_POLICY, "exploration_config": exploration}
    with getattr(shoal, algorithm)(env=Told, config=config) as trainer:
        for _ in range(60):  # as many as plain sampling needs here with PPO
            trainer.train()
        assert trainer.evaluate(episodes=20)["episode_reward_mean"] > -0.15 * STEPS


@pytest.mark.parametrize("exploration", [{"type": "SoftQ", "temperature": 0.2}, FALLING], ids=["softmax", "cosine"])
def test_discrete_actions(exploration: dict[str, Any]) -> None:
    config = {"seed": 1, "exploration_config": exploration, "env_config": {"continuous": False}}
    with shoal.DQN(env=Told, config=config) as trainer:
        for _ in range(5):
            trainer.train()
        assert trainer.evaluate(episodes=20)["episode_reward_mean"] > -0.1 * STEPS
