"""A random walk that goes wrong in one of many ways, every so many steps, in one of many environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EPISODE = 20

FATAL = (
    "raise",
    "exit",
    "raise_in_reset",
    "nan_in_reset",
    "nan_obs",
    "inf_obs",
    "huge_obs",
    "shape_obs",
    "none_obs",
    "text_obs",
    "none_reward",
    "nan_reward",
    "inf_reward",
    "array_reward",
    "text_reward",
    "four_tuple",
    "none_step",
    "array_flag",
    "digits_obs",
    "digits_reward",
    "large_reward",
    "text_flag",
    "nan_flag",
    "none_flag",
)
"""What costs an episode."""

HARMLESS = (
    "float64_obs",
    "list_obs",
    "out_of_space_obs",
    "mutated_obs",
    "numpy_reward",
    "array_0d_reward",
    "int_flag",
    "none_info",
    "list_info",
    "prints",
)
"""What costs nothing."""


class FaultEnv(gym.Env[Any, Any]):
    """`mode` happens at every `every`-th step (or reset) of the environments `faulty`; `any` takes turns.

    What it raises names the last seed, the steps since then and the episode's step, to compare a report with.
    """

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config: dict[str, Any]) -> None:
        self.mode, self.every = config.get("mode"), config.get("every", 30)
        if self.mode == "raise_in_constructor":
            raise RuntimeError("no licence for the solver")
        if self.mode == "out_of_space_obs":
            self.observation_space = spaces.Box(-0.001, 0.001, (3,), np.float32)
        self.is_faulty = self.mode is not None and config.env_index in config.get("faulty", [1])
        self.calls = self.resets = 0
        self.turn = config.env_index
        self.buffer = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.since_seed = seed, 0
        self.time, self.resets = 0, self.resets + 1
        self.walk = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self.is_faulty and self.resets > 1:
            if self.mode == "raise_in_reset":
                raise RuntimeError(f"no mesh at seed {self.seed} + {self.since_seed}, step 0")
            if self.mode == "nan_in_reset":
                return np.full(3, np.nan, np.float32), {}
        return self.walk.copy(), {}

    def step(self, action: int) -> Any:
        self.walk = self.walk + np.float32(0.1) * (action - 1) + self.np_random.normal(0, 0.1, 3).astype(np.float32)
        self.time += 1
        self.since_seed += 1
        self.calls += 1
        answer = self.walk.copy(), float(self.walk[0]), self.time == EPISODE, False, {}
        if self.is_faulty and (self.calls % self.every == 0 or self.mode in HARMLESS):
            return self.go_wrong(answer)
        return answer

    def go_wrong(self, answer: Any) -> Any:
        obs, reward, terminated, truncated, info = answer
        mode = self.mode
        if mode == "any":
            # A rebuilt environment begins to count anew, its seed does not.
            mode = FATAL[self.seed % len(FATAL)]
        if mode in ("raise", "raise_in_reset", "nan_in_reset"):
            raise ArithmeticError(f"diverged at seed {self.seed} + {self.since_seed}, step {self.time}\nand more lines")
        if mode == "exit":
            raise SystemExit(3)
        if mode == "prints":
            print("a solver that says a lot " * 20)
        if mode == "mutated_obs":
            self.buffer[:] = obs
        return {
            "nan_obs": (np.array([0, np.nan, 0], np.float32), reward, terminated, truncated, info),
            "inf_obs": (np.array([0, 0, np.inf], np.float32), reward, terminated, truncated, info),
            "huge_obs": (np.array([0, 0, 1e300]), reward, terminated, truncated, info),
            "shape_obs": (np.zeros(4, np.float32), reward, terminated, truncated, info),
            "none_obs": (None, reward, terminated, truncated, info),
            "text_obs": ("abc", reward, terminated, truncated, info),
            "none_reward": (obs, None, terminated, truncated, info),
            "nan_reward": (obs, np.nan, terminated, truncated, info),
            "inf_reward": (obs, -np.inf, terminated, truncated, info),
            "array_reward": (obs, np.array([reward]), terminated, truncated, info),
            "text_reward": (obs, "much", terminated, truncated, info),
            "four_tuple": (obs, reward, terminated, info),
            "none_step": None,
            "array_flag": (obs, reward, np.array([True, False]), truncated, info),
            "digits_obs": ([str(number) for number in obs], reward, terminated, truncated, info),
            "digits_reward": (obs, "1.0", terminated, truncated, info),
            "large_reward": (obs, 1e30, terminated, truncated, info),
            "text_flag": (obs, reward, "False", truncated, info),
            "nan_flag": (obs, reward, np.nan, truncated, info),
            "none_flag": (obs, reward, terminated, None, info),
            "int_flag": (obs, reward, int(terminated), np.int64(truncated), info),
            "list_info": (obs, reward, terminated, truncated, ["nothing"]),
            "float64_obs": (obs.astype(np.float64), reward, terminated, truncated, info),
            "list_obs": (obs.tolist(), reward, terminated, truncated, info),
            "out_of_space_obs": (obs, reward, terminated, truncated, info),
            "mutated_obs": (self.buffer, reward, terminated, truncated, info),
            "numpy_reward": (obs, np.float64(reward), np.bool_(terminated), truncated, info),
            "array_0d_reward": (obs, np.array(reward), terminated, truncated, info),
            "none_info": (obs, reward, terminated, truncated, None),
            "prints": answer,
        }[mode]
