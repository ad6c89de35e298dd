"""An environment format: `shoal train moon:NAME` calls `make("NAME", config)` for every environment.

Here NAME is a number: the gravity of a body on which a lander must keep its height.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from shoal import EnvContext

PLACES = {"moon": 1.62, "mars": 3.73, "earth": 9.81}


def make(name: str, config: EnvContext) -> gym.Env[Any, Any]:
    """One environment; what is wrong with the name is said by an exception, which becomes one sentence."""
    if name not in PLACES:
        raise ValueError(f"there is no {name!r}; use {', '.join(PLACES)}")
    return Hover(PLACES[name], config.get("episode_steps", 100))


class Hover(gym.Env[Any, Any]):
    """Keep a height of 1 against gravity, with an engine that is on or off."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, gravity: float, episode_steps: int) -> None:
        self.gravity, self.episode_steps = gravity, episode_steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.height, self.speed, self.taken = float(self.np_random.uniform(0.5, 1.5)), 0.0, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        self.speed += 0.02 * (2 * self.gravity * action - self.gravity)
        self.height += 0.02 * self.speed
        lost = not 0 < self.height < 2
        reward = 0.0 if lost else 1 - abs(self.height - 1)
        return self._seen(), reward, lost, self.taken >= self.episode_steps, {"height": self.height}

    def _seen(self) -> Any:
        return np.array([self.height - 1, self.speed], np.float32)
