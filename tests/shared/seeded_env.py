"""A walk whose environments fail for one seed of the run alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.data.streams import reset_seed


class SeededEnv(gym.Env[Any, Any]):
    """After `after` steps, `mode` happens in environment 1 of the run with the seed `faulty`; `once` or every time."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config: Any) -> None:
        self.mode, self.after, self.faulty = config.get("mode"), config.get("after", 40), config.get("faulty", 1)
        self.is_faulty = False
        self.steps = self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None and self.steps == 0:
            self.is_faulty = seed == reset_seed(self.faulty, 1, 1)
        self.time = 0
        self.place = self.np_random.normal(size=2).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps, self.time = self.steps + 1, self.time + 1
        if self.is_faulty and self.steps >= self.after:
            if self.mode == "raise":
                raise RuntimeError("the solver has diverged")
            return np.array([np.nan, 0.0], np.float32), 0.0, False, False, {}
        self.place[0] += 0.1 * (int(action) - 1)
        self.place = np.clip(self.place, -9, 9)
        return self.place.copy(), -abs(float(self.place[0])), abs(self.place[0]) > 2.5, self.time >= 25, {}
