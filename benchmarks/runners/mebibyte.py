"""An environment whose observations are images of one MiB."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]


class MebibyteEnv(gym.Env[Image, np.int64]):
    """Pictures of 512 x 512 x 4 bytes; the reward asks for the action that the picture's brightness names."""

    def __init__(self, _config: dict[str, Any] | None = None) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (512, 512, 4), np.uint8)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        """Start an episode of 16 steps."""
        super().reset(seed=seed, options=options)
        self.left = 16
        return self._picture(), {}

    def step(self, action: np.int64) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Reward the right answer and show the next picture."""
        reward = float(action == self.wanted)
        self.left -= 1
        return self._picture(), reward, False, self.left == 0, {}

    def _picture(self) -> Image:
        self.wanted = int(self.np_random.integers(2))
        return np.full((512, 512, 4), 255 * self.wanted, np.uint8)
