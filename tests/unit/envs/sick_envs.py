"""Environments that each have one illness, for `shoal check`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from mmap import mmap

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EPISODE = 30
COUNT = [0]
KEPT: list[mmap] = []


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
        KEPT.append(mmap(-1, 40_000))  # memory that is new, and not what the process has freed before
        KEPT[-1].write(b"x" * 40_000)
        return super().step(action)


class ProgramThatGrows(Healthy):
    """What grows is the solver, which is another process."""

    def __init__(self, config=None):
        super().__init__()
        program = "import sys\nkept = []\nfor line in sys.stdin: kept.append(b'x' * 40_000); print(flush=True)"
        pipe = subprocess.PIPE
        self.solver = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)

    def step(self, action):
        self.solver.stdin.write("\n")
        self.solver.stdin.flush()
        self.solver.stdout.readline()
        return super().step(action)

    def close(self):
        self.solver.communicate()


class ProgramThatOpensFiles(ProgramThatGrows):
    def __init__(self, config=None):
        super().__init__()
        self.solver.communicate()
        program = "import os, sys\nkept = []\nfor line in sys.stdin: kept.append(open(os.devnull)); print(flush=True)"
        pipe = subprocess.PIPE
        self.solver = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)


class StartingSolvers(Healthy):
    """A solver for each episode, none of which is ended before all of them are."""

    def __init__(self, config=None):
        super().__init__()
        self.solvers = []

    def reset(self, *, seed=None, options=None):
        self.solvers.append(subprocess.Popen(["sleep", "1000"]))
        return super().reset(seed=seed)

    def close(self):
        while self.solvers:
            solver = self.solvers.pop()
            solver.kill()
            solver.wait()


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


class ExitAtOnce(Healthy):
    def step(self, action):
        os._exit(3)


class HangAtOnce(Healthy):
    def reset(self, *, seed=None, options=None):
        threading.Event().wait()


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
