"""Environments for the tests of evaluation; other processes find them by this file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Falling(gym.Env):
    """A stone that falls from `height`: how long that takes depends on where it begins, not on what is done."""

    observation_space: spaces.Space = spaces.Box(-100, 100, (2,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, config) -> None:
        self.config = config
        self.gravity = config.get("gravity", 1.0)
        self.render_mode = config.get("render_mode")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {}
        if options.get("broken"):
            raise ValueError("no stone to throw")
        self.height = float(options.get("height", self.np_random.uniform(5, 15)))
        self.speed = 0.0
        self.first = self.height
        return self._obs(), {}

    def step(self, action):
        self.speed += self.gravity
        self.height -= self.speed
        if self.height < -90:
            raise RuntimeError("fell through the floor")
        info = {"impact": self.speed, "begun_at": self.first}
        return self._obs(), -1.0, self.height <= 0, False, info

    def render(self):
        if self.render_mode != "rgb_array":
            return None
        frame = np.zeros((33, 64, 3), np.uint8)
        frame[int(np.clip(31 - self.height, 0, 31)), 10:20] = 255
        return frame

    def _obs(self):
        return np.array([self.height, self.speed], np.float32)


class Steered(Falling):
    """What is done counts: one of the two actions is paid for."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + 0.1 * float(action), terminated, truncated, info


class Blind(Falling):
    """Draws nothing, whatever it is told."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.render_mode = None


class Fading(Falling):
    """Can be drawn at first."""

    def render(self):
        if self.speed > 1:
            raise RuntimeError("the lens broke")
        return super().render()


class Windowed(Falling):
    """Has a window, so it says."""

    metadata = {"render_modes": ["human", "rgb_array"]}


class Wide(Falling):
    """Observations as wide as it is told."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.observation_space = spaces.Box(-100, 100, (config.get("width", 2),), np.float32)

    def _obs(self):
        return np.resize(super()._obs(), self.observation_space.shape)


class Composite(Falling):
    """Sees a stone and a grid, does two things, and is cut off after three steps."""

    observation_space = spaces.Dict({"stone": spaces.Box(-100, 100, (2,)), "grid": spaces.MultiBinary([2, 3])})
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])

    def reset(self, *, seed=None, options=None):
        self.left = 3
        return super().reset(seed=seed, options={"height": 50})

    def step(self, action):
        self.left -= 1
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, self.left == 0, info

    def _obs(self):
        return {"stone": super()._obs(), "grid": np.ones((2, 3), np.int8)}


class Mortal(Falling):
    """Its first process ends in the middle of an episode, once."""

    def step(self, action):
        note = Path(self.config["note"])
        if self.config.env_index >= 4 and not note.exists():
            note.write_text(str(os.getpid()))
            os._exit(9)
        return super().step(action)


class Doomed(Falling):
    """Every process that evaluates it dies."""

    def step(self, action):
        if self.config.env_index >= 4:
            os._exit(9)
        return super().step(action)


class Meeting(Falling):
    """Training and evaluation each wait for the other, once there is a folder to meet in."""

    def step(self, action):
        place = Path(self.config["place"])
        if place.exists():
            mine, theirs = ("evaluated", "trained") if self.config.env_index >= 4 else ("trained", "evaluated")
            (place / mine).touch()
            deadline = time.monotonic() + 120
            while not (place / theirs).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert (place / theirs).exists(), f"{mine} alone"
        return super().step(action)


def vector(config):
    """Two stones as a native vector environment."""
    from gymnasium.vector import SyncVectorEnv

    return SyncVectorEnv([lambda: Falling({}), lambda: Falling({})])
