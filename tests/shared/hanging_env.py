"""Environments that hang in every step once there is a file `now` in the working folder, and always in `close`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

NOW = Path("now")


class Hanging(gym.Env[Any, Any]):
    """Gives one observation for ever; environment i leaves a file `hangsI` when it hangs."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.index = config.env_index
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if NOW.exists():
            Path(f"hangs{self.index}").touch()
            time.sleep(1000)
        return np.zeros(1, np.float32), 1.0, self.time == 10, False, {}

    def close(self) -> None:
        time.sleep(1000)
