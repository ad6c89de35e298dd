"""Environments that each have one illness, for `shoal check`."""

from __future__ import annotations

import ctypes
import os
import threading

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EPISODE = 30
COUNT = [0]
KEPT: list[bytearray] = []


class Healthy(gym.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        return self._observation(), float(action[0]), False, self.time >= EPISODE, {}

    def _observation(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Masked(Healthy):
    observation_space = spaces.Dict(
        {"value": spaces.Box(-1, 1, (2,), np.float32), "action_mask": spaces.Box(0, 1, (3,), np.int8)}
    )
    action_space = spaces.Discrete(3)

    def step(self, action):
        assert action != 1, "a masked action was taken"
        self.time += 1
        return self._observation(), float(action), False, self.time >= EPISODE, {}

    def _observation(self):
        return {"value": super()._observation(), "action_mask": np.array([1, 0, 1], np.int8)}


class Unseeded(Healthy):
    def _observation(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class Shared(Healthy):
    def step(self, action):
        COUNT[0] = 1 if self.time == 0 else COUNT[0] + 1
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(COUNT[0]), terminated, truncated, info


class NaNAtTheEdge(Healthy):
    def step(self, action):
        obs, *rest = super().step(action)
        return obs * (np.nan if abs(action[0]) >= 1 else 1), *rest


class Outside(Healthy):
    def _observation(self):
        return super()._observation() * 3


class Leaking(Healthy):
    def step(self, action):
        KEPT.append(bytearray(b"x" * 40_000))
        return super().step(action)


class Endless(Healthy):
    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class OpeningFiles(Healthy):
    def reset(self, *, seed=None, options=None):
        self.files = [*getattr(self, "files", []), open(os.devnull)]  # noqa: SIM115
        return super().reset(seed=seed)


class ClosingOnce(Healthy):
    is_closed = False

    def close(self):
        assert not self.is_closed, "closed already"
        self.is_closed = True


class Raising(Healthy):
    def step(self, action):
        if self.time == 20:
            raise RuntimeError("the solver diverged")
        return super().step(action)


class Segfault(Healthy):
    def step(self, action):
        if abs(action[0]) >= 1:
            ctypes.string_at(0)
        return super().step(action)


class Exit(Healthy):
    def step(self, action):
        if self.time == 20:
            print("the licence is lost", flush=True)
            os._exit(3)
        return super().step(action)


class Hang(Healthy):
    def step(self, action):
        if self.time == 20:
            threading.Event().wait()
        return super().step(action)


class TellingAll(Healthy):
    """Its state is its time; its generator is kept with it."""

    def get_state(self):
        return {"time": self.time}

    def set_state(self, state):
        self.time = state["time"]


class TellingHalf(TellingAll):
    """Forgets what its next observation depends on."""

    def reset(self, *, seed=None, options=None):
        first = super().reset(seed=seed)
        self.shift = float(self.np_random.uniform(-0.1, 0.1))
        return first

    def _observation(self):
        return np.clip(super()._observation() + getattr(self, "shift", 0), -1, 1).astype(np.float32)


class TellingAnObject(TellingAll):
    def get_state(self):
        return {"self": self}


def cart_poles(config):
    return gym.make_vec("CartPole-v1", config.num_envs, vectorization_mode="sync")
