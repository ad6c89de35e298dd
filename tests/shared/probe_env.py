"""Environments for the contract tests; other processes find them by this file."""

from __future__ import annotations

import os
from time import sleep

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal import EnvContext, Repeated


class Walk(gym.Env):
    """A walk that knows which environment of the run it is."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3)

    def __init__(self, config) -> None:
        self.index = config.env_index
        self.place = (config.worker_index, config.vector_index, config.env_index, config.num_workers)
        self.closing_note = config.get("closing_note")
        self.obs = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.obs[:] = 5 * self.np_random.standard_normal(3) + 3
        return self.obs, {}

    def step(self, action):
        self.steps += 1
        self.obs += np.float32(np.sum(action) - 1) + self.np_random.standard_normal(3).astype(np.float32)
        reward = float(np.sum(action)) if self.obs[0] > 0 else -float(np.sum(action))
        return self.obs, reward, bool(abs(self.obs[0]) > 12), self.steps >= 20, {"height": float(self.obs[2])}

    def set_goal(self, goal) -> None:
        self.goal = goal

    def close(self) -> None:
        if self.closing_note:
            with open(f"{self.closing_note}{self.index}", "w") as file:
                file.write(str(os.getpid()))


class WalkInBox(Walk):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


class SlowWalk(Walk):
    """A simulator that leaves a learner time."""

    def step(self, action):
        sleep(0.04)
        return super().step(action)


class SlowWalkInBox(SlowWalk):
    action_space = spaces.Box(-1, 1, (2,), np.float32)


class WalkAmongFour(Walk):
    """One action more."""

    action_space = spaces.Discrete(4)


class Squares(Walk):
    """A choice among three squares: its network has as many parameters as that of the walk."""

    observation_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return self.steps % 3, reward, terminated, truncated, info


class Broken(Walk):
    def __init__(self, config) -> None:
        raise RuntimeError("the solver's licence has run out")


class BrokenInSecondWorker(Walk):
    def __init__(self, config) -> None:
        if config.worker_index == 2:
            raise RuntimeError("no mesh for the second worker")
        super().__init__(config)


class Failing(Walk):
    """Raises at a step of its life that differs between environments."""

    def step(self, action):
        self.life = getattr(self, "life", 0) + 1
        if self.life == 7 + self.index:
            raise RuntimeError("diverged")
        return super().step(action)


class FailingNowAndThen(Walk):
    """Raises in some of its episodes, by their seed."""

    def step(self, action):
        if self.np_random.random() < 0.1:
            raise RuntimeError("diverged")
        return super().step(action)


class Hopeless(Walk):
    def step(self, action):
        raise RuntimeError("diverged at once")


class Dying(Walk):
    """Takes its whole process with it."""

    def step(self, action):
        if self.steps == 3 and self.place[0] == 2:
            os._exit(17)
        return super().step(action)


class DyingWithWords(Walk):
    """Says why before it takes its process with it, as solvers do."""

    def step(self, action):
        if self.steps == 3 and self.place[0] == 2:
            os.write(2, b"Floating point exception in the solver, cell 17\n")
            os.kill(os.getpid(), 8)
        return super().step(action)


def vector(config):
    """Four walks as a native vector environment."""
    from gymnasium.vector import SyncVectorEnv

    return SyncVectorEnv([lambda k=k: Walk(EnvContext(env_index=k)) for k in range(4)])


class Masked(Walk):
    """Some of four actions are open, others are refused; which, chance decides at every step."""

    observation_space = spaces.Dict(observations=Walk.observation_space, action_mask=spaces.MultiBinary(4))
    action_space = spaces.Discrete(4)

    def seen(self):
        self.open = self.np_random.random(4) < 0.4
        self.open[self.np_random.integers(4)] = True
        return {"observations": self.obs, "action_mask": self.open.astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        if not self.open[action]:
            raise RuntimeError(f"action {action} is closed")
        _, *rest = super().step(action)
        return self.seen(), *rest


class Offers(Masked):
    """The same, and each action has an embedding of its own."""

    observation_space = spaces.Dict(
        Masked.observation_space.spaces | {"avail_actions": spaces.Box(-np.inf, np.inf, (4, 2), np.float32)}
    )

    def seen(self):
        return {**super().seen(), "avail_actions": self.np_random.standard_normal((4, 2)).astype(np.float32)}


class Crowd(Walk):
    """A walk among others, of whom there are more or fewer."""

    observation_space = spaces.Dict(me=Walk.observation_space, others=Repeated(spaces.Box(-9, 9, (2,), np.float32), 4))

    def seen(self):
        others = self.np_random.uniform(-9, 9, (self.np_random.integers(5), 2)).astype(np.float32)
        return {"me": self.obs, "others": list(others)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action):
        _, *rest = super().step(action)
        return self.seen(), *rest


class Stuck(Masked):
    """In its seventh step it has no way out."""

    def seen(self):
        obs = super().seen()
        return obs if self.steps != 7 else {**obs, "action_mask": np.zeros(4, np.int8)}


class Opaque(Walk):
    """A walk with chance of its own, which neither seeds nor actions determine; it can tell its whole state."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.chance = np.random.default_rng()
        self.calls = 0  # of step, in this very object

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs += self.chance.standard_normal(3).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        self.calls += 1
        self.obs += self.chance.standard_normal(3).astype(np.float32) / 10
        return super().step(action)

    def get_state(self):
        return {"obs": self.obs, "steps": self.steps, "chance": self.chance.bit_generator.state, "note": (b"\0a", None)}

    def set_state(self, state) -> None:
        assert state["note"] == (b"\0a", None)
        self.obs[:], self.steps = state["obs"], state["steps"]
        self.chance.bit_generator.state = state["chance"]


class OpaqueWithCrash(Opaque):
    """Its state cannot be asked for: that ends its process."""

    def get_state(self):
        os._exit(3)


class Dot(gym.Env):
    """A dot that follows the actions through noise; its last four images are seen, the newest last."""

    observation_space = spaces.Box(0, 255, (36, 36, 4), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.place = 0, int(self.np_random.integers(4, 32))
        self.seen = np.stack([self._image()] * 4, axis=-1)
        return self.seen, {}

    def step(self, action):
        self.steps += 1
        self.place += int(action) - 1
        self.seen = np.concatenate([self.seen[..., 1:], self._image()[..., None]], axis=-1)
        is_out = not 2 <= self.place < 34
        return self.seen, float(self.place < 18), is_out, self.steps >= 15, {}

    def _image(self):
        image = self.np_random.integers(0, 50, (36, 36), np.uint8)
        image[self.place - 2 : self.place + 2, 16:20] = 255
        return image


class DotInBox(Dot):
    """The same, moved by a number."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        return super().step(int(action[0] > 0.5) - int(action[0] < -0.5) + 1)
