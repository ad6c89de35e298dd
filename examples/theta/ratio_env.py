"""Four choices among 49, and one reward at the end: which numbers give the wanted ratio?"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SCALAR = 1.0 / 6.931
SMALLEST, NUM_CHOICES = 12, 49  # each number is one of 12 to 60


class RatioEnv(gym.Env):
    """Picks x1..x4 in 0..48; the reward is minus the squared distance of x2 x3 / (x1 x4), each plus 12, from Scalar.

    With `reward: digits` it is minus the decimal logarithm of that square instead, which tells 1e-8 from 1e-12.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.scalar = config.get("Scalar", SCALAR)
        self.reward = config.get("reward", "square")
        if self.reward not in ("square", "digits"):
            raise ValueError(f"reward is square or digits, not {self.reward!r}")
        self.observation_space = spaces.MultiDiscrete([4, 49, 49, 49, 49])
        self.action_space = spaces.Discrete(NUM_CHOICES)
        self.chosen = np.zeros(5, np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.chosen = np.zeros(5, np.int64)
        return self.chosen, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.chosen[0] += 1  # the last step leaves the observation space: it counts to 4
        self.chosen[self.chosen[0]] = action
        if self.chosen[0] < 4:
            return self.chosen, 0.0, False, False, {}
        a, b, c, d = self.chosen[1:] + SMALLEST
        square = float((self.scalar - b * c / (a * d)) ** 2)
        digits = -math.log10(max(square, 1e-16))
        reward = digits if self.reward == "digits" else -square
        return self.chosen, reward, True, False, {"digits": digits}
