# fmt: off
"""The seed's ratio environment, verbatim but for the import, and other environments in the style of old Gym."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class my_environment(gym.Env):

    def __init__(self, config):
        self.Scalar = config['Scalar']
        print('Scalar value : ', self.Scalar)
        self.observation_space = spaces.MultiDiscrete([ 4, 49, 49, 49, 49 ])
        self.action_space = spaces.Discrete(49)
        self.current_step = 0
        self.intvector = np.asarray([0,0,0,0,0], dtype=np.int64)

    def reset(self):
        self.current_step = 0
        self.intvector = np.asarray([0,0,0,0,0], dtype=np.int64)

        return self.intvector

    def _take_action(self, action):
        self.intvector[self.current_step +1] = action
        self.intvector[0] += 1

    def step(self, action):

        self._take_action(action)

        self.current_step += 1

        obs = self.intvector
        if self.current_step < 4:
            reward = 0
            done = False
        else:
            self.intvector[1:] += 12
            reward = -(self.Scalar - (self.intvector[3]*self.intvector[2]) / (self.intvector[1]*self.intvector[4]))**2
            self.intvector[1:] -= 12
            done = True

        return obs, reward, done , {}

    def render(self, mode="human", close=False):
        pass


class NewResetOldStep(gym.Env):
    """Half moved to Gymnasium: only a first step tells."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}


class Drawing(gym.Env):
    """Draws from Gymnasium's generator in an old-style reset, and runs into an old time limit."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self):
        return self.np_random.random(1).astype(np.float32)

    def step(self, action):
        return self.reset(), 0.0, True, {"TimeLimit.truncated": action == 1}

    def set_task(self, task):
        self.task = task


# What `gym.spaces` looked like: same names and attributes, no relation to Gymnasium's classes.
class Box:
    def __init__(self, low, high, shape, dtype=np.float32):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)


class Discrete:
    def __init__(self, n):
        self.n = n


class MultiDiscrete:
    def __init__(self, nvec):
        self.nvec = np.asarray(nvec)


class MultiBinary:
    def __init__(self, n):
        self.n = n


class Dict:
    def __init__(self, spaces):
        self.spaces = spaces


class Tuple:
    def __init__(self, spaces):
        self.spaces = tuple(spaces)


class Text:
    pass


class Stranger:
    """An environment of the real old Gym: no relation to Gymnasium, its own seed method."""

    metadata = {"render.modes": []}

    def __init__(self, size=3):
        self.observation_space = Box(-1, 1, (size,))
        self.action_space = Discrete(2)
        self.seeds = []
        self.closed = False

    @property
    def unwrapped(self):
        return self

    def seed(self, seed=None):
        self.seeds.append(seed)
        return [seed]

    def reset(self):
        return np.zeros(self.observation_space.shape, np.float32)

    def step(self, action):
        return self.reset(), 1.0, True, {}

    def render(self):
        return "a picture"

    def close(self):
        self.closed = True
