"""An environment of five steps in which the best action is the number that is seen."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Target(gym.Env[Any, Any]):
    """The reward is minus the squared distance between action and observation; there are five steps."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._t = 0
        self._seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -float((action[0] - self._seen[0]) ** 2)
        self._t += 1
        self._seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._seen, reward, self._t == 5, False, {}
