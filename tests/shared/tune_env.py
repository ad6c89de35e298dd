"""Environments for the tests of sweeps; other processes find them by this file."""

from __future__ import annotations

import math
import os

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import shoal

PHASE = 8
"""Iterations after which another learning rate is the best."""


class Ladder(shoal.TaskSettableEnv):
    """Episodes of one step whose reward is the task: how far `climb` has come."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config) -> None:
        self.task = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.np_random.uniform(-1, 1)], np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.task, True, False, {}

    def get_task(self):
        return self.task

    def set_task(self, task) -> None:
        self.task = task


def climb(train_results, task_settable_env, env_ctx):
    """One rung an iteration with the best learning rate, which is 1e-2 at first and 1e-4 later; less with others."""
    best = -2 if train_results["training_iteration"] <= PHASE else -4
    rate = math.log10(train_results["learner"]["cur_lr"])
    return train_results["task"] + max(0.0, 1 - abs(rate - best) / 2)


class Fragile(gym.Env):
    """Raises as it is made where its config says so, or ends its process."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config) -> None:
        if config["fault"] == "raises":
            raise ValueError("no licence for the simulator")
        self.note = config.get("note")
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.note and self.steps == 100 and not os.path.exists(self.note):
            with open(self.note, "w") as file:
                file.write(str(os.getpid()))
            os._exit(3)
        return np.zeros(1, np.float32), 1.0, self.steps % 5 == 0, False, {}
