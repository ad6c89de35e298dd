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


class Delayed(Task):
    """Pays only at the end of a long episode."""

    length = 600

    def reward(self, action) -> float:
        return float(self.np_random.normal()) if self.time == self.length else 0.0


class Dear(Task):
    """Rewards in a unit that is far too small."""

    def reward(self, action) -> float:
        return 1e5 * super().reward(action)


class OneLoud(Task):
    """The first environment has rewards that are a thousand times those of the others."""

    def __init__(self, config):
        self.loudness = 1000 if config.env_index == 0 else 1

    def reward(self, action) -> float:
        return self.loudness * super().reward(action)


class Wearing(Task):
    """Pays by chance, and less, once it has made many steps."""

    def __init__(self):
        self.made = 0

    def reward(self, action) -> float:
        self.made += 1
        return super().reward(action) if self.made < 1500 else float(self.np_random.random() < 0.3)


class Turned(Task):
    """Where its configuration says so, the wrong answer is the right one."""

    def __init__(self, config):
        self.is_turned = config.get("turned", False)

    def reward(self, action) -> float:
        return super().reward(1 - action if self.is_turned else action)


class Offset(Task):
    """What changes is small beside what does not."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def look(self):
        super().look()
        return self.shown + np.float32(1e6)


class Overflowing(Task):
    """Numbers whose squares are too large for their type."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def look(self):
        super().look()
        return self.shown * np.float32(1e30)


class Fragile(Task):
    """Its third action pays nothing, and breaks it late in an episode: few trainings take it there twice."""

    action_space = spaces.Discrete(3)

    def reward(self, action) -> float:
        return super().reward(action) - 5 * (action == 2)

    def step(self, action):
        if action == 2 and self.time == self.length - 1:
            raise RuntimeError("the solver diverged")
        return super().step(action)


class Indifferent(Task):
    """Four actions, of which none matters, and episodes of a hundred steps."""

    action_space = spaces.Discrete(4)
    length = 100

    def reward(self, action) -> float:
        return float(self.np_random.random() < 0.5)


class Adrift(Task):
    """Eight continuous actions, of which none matters."""

    action_space = spaces.Box(-1, 1, (8,), np.float32)

    def reward(self, action) -> float:
        return float(self.np_random.normal())


class Forced(Task):
    """Its mask leaves one action, another one from step to step."""

    observation_space = spaces.Dict(seen=Task.observation_space, action_mask=spaces.MultiBinary(2))

    def look(self):
        seen = super().look()
        return {"seen": seen, "action_mask": np.array([seen[1] > 0, seen[1] <= 0], np.int8)}


class Feeding(Task):
    """Values of its first step are learned from those of its second, and those from themselves: they grow together."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    length = 2

    def look(self):
        return np.full(3, 1.0 + self.time, np.float32)

    def reward(self, action) -> float:
        return float(self.np_random.normal())


class TimeLimited(Task):
    """Says that it has ended where it is only cut off."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, truncated, False, info
