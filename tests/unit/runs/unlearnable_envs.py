"""Environments that each have one reason not to be learned, for `shoal diagnose`."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Healthy(gym.Env):
    """A point on a line that should come to its middle; some episodes end early."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config):
        self.env_index = config.env_index

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.place = self.np_random.uniform(-1, 1)
        return self.observation(), {}

    def step(self, action):
        self.time += 1
        self.place += 0.1 * (int(action) - 1) + 0.02 * self.np_random.normal()
        return self.observation(), self.reward(), abs(self.place) > 1.5, self.time >= 50, {}

    def observation(self):
        return np.array([self.place, self.time / 50], np.float32)

    def reward(self):
        return -abs(self.place)


class Continuous(Healthy):
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        return super().step(1 + float(action[0]))


class Blind(Healthy):
    def observation(self):
        return np.zeros(2, np.float32)


class HalfBlind(Healthy):
    def observation(self):
        return np.array([self.place, 0.5], np.float32)


class Uneven(Healthy):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self):
        return np.array([1e5 + 1e4 * self.place, 0.01 * self.place], np.float32)


class Unseeded(Healthy):
    def observation(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class Deaf(Healthy):
    def step(self, action):
        return super().step(1)


class Fragile(Healthy):
    """It fails where it is pushed to the right, which a policy may have learned to leave."""

    def step(self, action):
        if action == 2:
            raise RuntimeError("the solver diverged")
        return super().step(action)


class Limited(Healthy):
    """Its time limit says that the episode has terminated."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.time >= 40, False, info


class Loud(Healthy):
    """The first environment has rewards that are a thousand times those of the others."""

    def reward(self):
        return super().reward() * (1000 if self.env_index == 0 else 1)


class Masked(Healthy):
    flags = (1, 0, 1)
    observation_space = spaces.Dict(
        {"value": spaces.Box(-10, 10, (2,), np.float32), "action_mask": spaces.Box(0, 1, (3,), np.int8)}
    )

    def observation(self):
        return {"value": super().observation(), "action_mask": np.array(self.mask(), np.int8)}

    def mask(self):
        return self.flags


class Unmasked(Masked):
    flags = (1, 1, 1)


class WellMasked(Masked):
    def mask(self):
        return (self.place > -1, 1, self.place < 1)


class Rare(Healthy):
    """One step in a hundred has a reward that outweighs the whole rest."""

    def reward(self):
        return -1e5 if self.np_random.random() < 0.01 else -abs(self.place)


class Positive(Healthy):
    """Rewards differ, and have one sign."""

    def reward(self):
        return 2.0 - abs(self.place)
