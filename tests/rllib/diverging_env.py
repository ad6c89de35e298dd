"""An environment with spaces that RLlib refuses by itself, which fails where its config says so."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Diverging(gym.Env[Any, Any]):
    """Guess the bits that are shown; `fails_after` so many steps of its life it raises at every step."""

    observation_space = spaces.Dict({"bits": spaces.MultiBinary(2), "phase": spaces.Discrete(3)})
    action_space = spaces.MultiBinary(2)

    def __init__(self, config: Any) -> None:
        self.fails_after, self.steps = config.get("fails_after"), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.fails_after is not None and self.steps > self.fails_after:
            raise RuntimeError("the solver has diverged")
        reward = float((action == self.bits).sum())
        self.time += 1
        return self._seen(), reward, False, self.time == 10, {"right": reward}

    def _seen(self) -> Any:
        self.bits = self.np_random.integers(0, 2, 2).astype(np.int8)
        return {"bits": self.bits, "phase": self.time % 3}
