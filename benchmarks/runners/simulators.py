"""Simulators whose cost is known; workers and peers import them from this file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

EPISODE = 200  # steps


class Sleeping(gym.Env[Any, Any]):
    """Waits for `sleep_s` at every step, as for a solver that runs elsewhere; `size` numbers are an observation.

    A share `uneven` of its steps takes ten times as long.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.sleep_s = float(config.get("sleep_s", 0.0))
        self.uneven = float(config.get("uneven", 0.0))
        self.observation_space = spaces.Box(-1, 1, (int(config.get("size", 4)),), np.float32)
        self.obs = np.zeros(self.observation_space.shape, np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.sleep_s:
            is_slow = self.uneven and self.np_random.random() < self.uneven
            time.sleep(self.sleep_s * (10 if is_slow else 1))
        self.steps += 1
        return self.obs, float(action), False, self.steps >= EPISODE, {}


class SleepingVector(VectorEnv[Any, Any, Any]):
    """`num_envs` simulators that are waited for together, `sleep_s` at every step, without end."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.sleep_s = float(config["sleep_s"])
        self.num_envs = int(config["num_envs"])
        self.single_observation_space = spaces.Box(-1, 1, (int(config.get("size", 4)),), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.obs = np.zeros(self.observation_space.shape or (), np.float32)
        self.never = np.zeros(self.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.obs, np.asarray(actions, np.float32), self.never, self.never, {}


class OfOwnPace(Sleeping):
    """A simulator of each worker's own pace: that of the last waits ten times as long as that of the first."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        others = max(config.num_workers - 1, 1)
        self.sleep_s *= 10 ** ((config.worker_index - 1) / others)


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    """Another's steps, each of `sleep_s`, as if a solver computed them; the first `quick_steps` take no time."""

    env_id: str

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(gym.make(self.env_id))
        self.sleep_s = float(config.get("sleep_s", 0.0))
        self.quick_steps = int(config.get("quick_steps", 0))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.quick_steps:
            self.quick_steps -= 1
        else:
            time.sleep(self.sleep_s)
        return super().step(action)


class SlowPendulum(Slow):
    """A slow pendulum, for SAC."""

    env_id = "Pendulum-v1"


class SlowCartPole(Slow):
    """A slow pole on a cart, for DQN."""

    env_id = "CartPole-v1"
