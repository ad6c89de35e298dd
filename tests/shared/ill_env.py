"""A small task, and environments around it that each have one illness which only training or play shows."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Task(gym.Env):
    """Name the sign of a number, ten times: a reward of 1 for each that is right."""

    observation_space: spaces.Space = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)
    length = 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.look(), {}

    def look(self):
        self.shown = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.shown

    def reward(self, action) -> float:
        return float(int(action) == (self.shown[0] > 0))

    def step(self, action):
        self.time += 1
        reward = self.reward(action)
        return self.look(), reward, False, self.time >= self.length, {}


class NoReward(Task):
    def reward(self, action) -> float:
        return 0.0


class RareReward(Task):
    def reward(self, action) -> float:
        return float(self.np_random.random() < 2e-4)


class Failing(Task):
    def step(self, action):
        if self.np_random.random() < 0.05:
            raise RuntimeError("the solver diverged")
        return super().step(action)


class Blind(Task):
    """Shows the same whatever happens."""

    def look(self):
        super().look()
        return np.full(3, 0.5, np.float32)


class Deaf(Task):
    """Rewards by chance."""

    def reward(self, action) -> float:
        return float(self.np_random.random() < 0.5)


class Uneven(Task):
    """Numbers of very different size."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def look(self):
        return super().look() * np.array([1e-3, 1, 1e5], np.float32)


class Unseeded(Task):
    def look(self):
        self.shown = np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)
        return self.shown


class FixedMask(Task):
    """Its mask is always the same, and forbids one action for good."""

    observation_space = spaces.Dict(seen=Task.observation_space, action_mask=spaces.MultiBinary(3))
    action_space = spaces.Discrete(3)

    def look(self):
        return {"seen": super().look(), "action_mask": np.array([1, 1, 0], np.int8)}


class Huge(Task):
    """Rewards of one step in a hundred are ten thousand times those of the others."""

    def reward(self, action) -> float:
        return super().reward(action) * (1e4 if self.np_random.random() < 0.01 else 1.0)


class Praised(Task):
    """Rewards are 1 or 2."""

    def reward(self, action) -> float:
        return 1 + super().reward(action)


class Long(Task):
    length = 600


class TimeLimited(Task):
    """Says that it has ended where it is only cut off."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, False, info
