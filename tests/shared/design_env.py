"""A design problem: an episode is one step, in which numbers are chosen that nobody sees the best of."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BEST = np.array([0.3, -0.5, 0.1])


class Design(gym.Env):
    """The reward is 0 at `BEST` and falls with the square of the distance."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, config=None) -> None:
        self.fails_at = (config or {}).get("fails_at")
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        return np.ones(1, np.float32), {}

    def step(self, action):
        if self.episodes == self.fails_at:
            raise RuntimeError("the mesh is broken")
        return np.ones(1, np.float32), -float(np.square(action - BEST).sum()), True, False, {}
