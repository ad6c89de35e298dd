"""An environment that ends its process in its sixth step, as a solver that calls exit() does."""

from __future__ import annotations

import os

import gymnasium
import numpy as np


class Ending(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 6:
            os._exit(7)
        return np.zeros(2, np.float32), 1.0, False, False, {}
