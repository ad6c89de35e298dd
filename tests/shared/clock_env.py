"""Environments with a clock, and what a vector makes of them, for the tests of vectors."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import Steps

N = 3


class Clock(gym.Env):
    """Shows its number and its step; terminates (odd numbers) or truncates (even) after 2 + number steps."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, number: int) -> None:
        self.number, self.steps = number, 0

    def look(self):
        return np.array([self.number, self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps >= 2 + self.number
        odd = self.number % 2 == 1
        info = {"last": self.steps, "note": "over"} if over else {"halfway": 0.5}
        return self.look(), 10.0 * self.steps + action, over and odd, over and not odd, info


class Nested(Clock):
    observation_space = spaces.Dict(seen=spaces.Box(-100, 100, (2,), np.float32), phase=spaces.Discrete(50))

    def look(self):
        return {"seen": super().look(), "phase": self.steps}


class Counted(Clock):
    observation_space = spaces.Discrete(50, start=5)

    def look(self):
        return 5 + self.steps


def specs(env):
    return ObsSpec(env.observation_space), ActionSpec(env.action_space)


def empty_steps(obs_spec, n=N) -> Steps:
    return Steps(obs_spec.allocate(n), np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool), np.ones(n, bool))


def transitions(vector, obs_spec, count=40, n=N):
    """Of each environment, in order: what was seen, done, earned, and seen after that; resets are left out."""
    found = [[] for _ in range(n)]
    obs = obs_spec.allocate(n)
    vector.reset(obs)
    for _ in range(count):
        steps = empty_steps(obs_spec, n)
        actions = np.array([[len(found[row]) % 3] for row in range(n)])
        vector.step(actions, None, steps)
        finals = dict(steps.finals)
        assert set(finals) == set(np.flatnonzero(steps.truncated & steps.valid).tolist())
        for row in range(n):
            before = [part[row].tolist() for part in obs]
            if not steps.valid[row]:
                assert steps.terminated[row]
                assert not steps.truncated[row]
                assert steps.rewards[row] == 0
                continue
            after = [part.tolist() for part in finals[row]] if row in finals else [p[row].tolist() for p in steps.obs]
            terminated = bool(steps.terminated[row])
            found[row].append(
                (before, float(steps.rewards[row]), terminated, row in finals, None if terminated else after)
            )
        obs = tuple(part.copy() for part in steps.obs)
    return found
