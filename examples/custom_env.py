"""Your own environment: a craft on a line that is to arrive at a station, and to arrive slowly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal import TaskSettableEnv


class CustomEnv(gym.Env):
    """Thrust back, none or ahead; closer to the station and slower is better, and docking ends the episode."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = config or {}
        self.thrust = config.get("thrust", 0.05)
        self.max_steps = config.get("max_steps", 100)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.velocity = float(self.np_random.uniform(-1, 1)), 0.0
        self.steps = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.velocity += self.thrust * (action - 1)
        self.position += 0.2 * self.velocity
        self.steps += 1
        docked = abs(self.position) < 0.05 and abs(self.velocity) < 0.1
        reward = 10.0 if docked else -abs(self.position) - 0.1 * abs(self.velocity)
        return self._seen(), reward, docked, self.steps >= self.max_steps, {"docked": docked}

    def _seen(self) -> Any:
        return np.array([self.position, self.velocity], np.float32)


class CurriculumEnv(CustomEnv, TaskSettableEnv):
    """The same craft, which starts the farther from the station the higher the difficulty is."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.difficulty = 0

    def get_task(self) -> int:
        return self.difficulty

    def set_task(self, task: int) -> None:
        if task < 0:
            raise ValueError(f"difficulty {task}")
        self.difficulty = task

    def sample_tasks(self, n_tasks: int) -> list[int]:
        return self.np_random.integers(0, 10, n_tasks).tolist()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.position *= min(0.1 * (1 + self.difficulty), 1.0)
        return self._seen(), {}
