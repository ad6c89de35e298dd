"""A random walk for tests of learners, and a batch of it that stays as it is while a sampler goes on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.data.batch import Batch

FEATURES = 3


class Walk(gym.Env[Any, Any]):
    """Falls, or is cut after five steps; any actions will do."""

    observation_space: spaces.Space[Any] = spaces.Box(-100, 100, (FEATURES,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self, action_space: spaces.Space[Any] | None = None) -> None:
        self.action_space = action_space or type(self).action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.obs = self.np_random.standard_normal(FEATURES).astype(np.float32)
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.obs = self.obs + self.np_random.standard_normal(FEATURES).astype(np.float32)
        pushed = np.sum(action if not isinstance(action, dict) else spaces.flatten(self.action_space, action))
        return self.obs, float(self.obs[0] + pushed), bool(abs(self.obs[1]) > 2), self.steps >= 5, {}


def copied(batch: Batch) -> Batch:
    """The same batch in memory of its own: the sampler writes its next one over this."""
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs", "final_at")
    arrays = {name: getattr(batch, name).copy() for name in names}
    return Batch(obs=(batch.obs[0].copy(),), final_obs=(batch.final_obs[0].copy(),), **arrays)
