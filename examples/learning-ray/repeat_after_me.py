"""An environment that cannot be solved without memory: the right action is what was seen some steps ago."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces


class RepeatAfterMe(gym.Env):
    """Sees a coin at every step; saying what it was `repeat_delay` steps ago is worth 1, anything else -1."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.delay = (config or {}).get("repeat_delay", 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.history = [0] * self.delay
        return self._next(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0 if action == self.history[-1 - self.delay] else -1.0
        return self._next(), reward, len(self.history) > 100, False, {}

    def _next(self) -> int:
        self.history.append(int(self.np_random.integers(2)))
        return self.history[-1]
