"""An environment that goes wrong in every way that simulators do, to try out a set-up before node-hours are spent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from time import sleep
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.errors import ConfigError

FOR_EVER_S = 100_000
LEAK_BYTES = 20_000_000  # at a time
LEAK_PAUSE_S = 0.02

KINDS = {
    "raise": "step raises",
    "exit": "the process ends with exit code 3",
    "segfault": "the process reads where there is no memory",
    "hang": "step sleeps and never returns",
    "gil_hang": "step never returns, and no other thread of Python gets a turn",
    "stop": "the process is stopped, as by Ctrl-Z",
    "nan": "an observation is not a number",
    "shape": "an observation has another shape, once",
    "none": "step returns None",
    "slow_reset": "the next reset never returns",
    "leak": "memory is taken and never given back",
    "log_flood": "a hundred thousand lines are printed, and nothing else is wrong",
    "grandchildren": "the process is killed, and leaves programs behind that are deaf to SIGTERM",
    "changed_shape": "every observation from now on has another shape",
}
"""What can go wrong, each by its name."""

NEEDS_PROCESS = ("exit", "segfault", "hang", "gil_hang", "stop", "slow_reset", "leak", "grandchildren")
"""What only an environment in a process of its own survives (env_isolation, timeouts, env_memory_limit_mb)."""


class FaultEnv(gym.Env[Any, Any]):
    """A random walk with faults: train with `env: shoal.envs:FaultEnv`.

    `env_config` may hold `kinds` (names in `KINDS`; default: all), `every` (mean number of steps between faults, by
    default 1000), `by_index` (environment i has kind i of the list alone), `episode` (steps of an episode, by default
    20), `leak_mb` (what a leak takes at most, by default 1000) and `file`, which gets a line of JSON before each fault.
    When and which fault comes follows from the seed, so that what went wrong goes wrong again when its episode is
    replayed.
    """

    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, config: Any = None) -> None:
        given = dict(config or {})
        kinds = list(given.pop("kinds", KINDS))
        self._every = max(int(given.pop("every", 1000)), 1)
        by_index = given.pop("by_index", False)
        self._episode = int(given.pop("episode", 20))
        self._most_leaked = int(given.pop("leak_mb", 1000)) * 1_000_000
        self._file = given.pop("file", None)
        if given:
            raise ConfigError(f"FaultEnv: env_config has no {', '.join(given)}; see its documentation")
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise ConfigError(f"FaultEnv: kinds has no {', '.join(unknown)}; there are {', '.join(KINDS)}")
        self._index = getattr(config, "env_index", 0)
        self._kinds = [kinds[self._index % len(kinds)]] if by_index else kinds
        self._is_changed = self._is_slow = False
        self._leaked: list[bytes] = []
        self._faults = np.random.default_rng(self._index)
        self._seed: int | None = None
        self._since_seed = self._fault_at = self._time = 0
        self._draw_next_fault()  # for whoever resets without a seed
        self._place = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        del options
        super().reset(seed=seed)
        if self._is_slow:
            self._write_down("slow_reset", 0)
            sleep(FOR_EVER_S)
        if seed is not None:
            self._seed = seed
            self._faults = np.random.default_rng([seed, 1])
            self._since_seed = 0
            self._draw_next_fault()
        self._time = 0
        self._place = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self._seen(), {}

    def step(self, action: int) -> Any:
        """Move on, or go wrong."""
        self._time += 1
        self._since_seed += 1
        noise = self.np_random.normal(0, 0.1, 3).astype(np.float32)
        self._place = self._place + np.float32(0.1 * (int(action) - 1)) + noise
        answer: Any = (self._seen(), float(self._place[0]), self._time >= self._episode, False, {})
        if self._since_seed == self._fault_at:
            kind = self._kinds[int(self._faults.integers(len(self._kinds)))]
            self._draw_next_fault()
            return self._go_wrong(kind, answer)
        return answer

    def _seen(self) -> Any:
        return np.zeros(5, np.float32) if self._is_changed else self._place.copy()

    def _draw_next_fault(self) -> None:
        # Without memory: however often there is a new seed, faults come as often.
        self._fault_at = self._since_seed + int(self._faults.geometric(1 / self._every))

    def _write_down(self, kind: str, step: int) -> None:
        if self._file is None:
            return
        fault = {
            "kind": kind,
            "env_index": self._index,
            "seed": self._seed,
            "steps_since_seed": self._since_seed,
            "step": step,
        }
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, (json.dumps(fault) + "\n").encode())  # whole, whoever else writes
        os.close(file)

    def _go_wrong(self, kind: str, answer: Any) -> Any:
        others = answer[1:]
        if kind != "slow_reset":  # which goes wrong later
            self._write_down(kind, self._time)
        if kind == "raise":
            raise ArithmeticError(f"the solver diverged at step {self._time}")
        if kind == "exit":
            os._exit(3)
        elif kind == "segfault":
            ctypes.string_at(0)
        elif kind == "hang":
            sleep(FOR_EVER_S)
        elif kind == "gil_hang":
            ctypes.PyDLL(None).sleep(FOR_EVER_S)  # a call that, unlike those of CDLL, keeps the GIL
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "leak":
            self._leak()
        elif kind == "log_flood":
            # A thousand at a time, as solvers write to a file: to print them takes little, on a busy machine too.
            lines = "".join(f"iteration {number}: residual 0.001\n" for number in range(1000))
            for _ in range(100):
                sys.stderr.write(lines)
        elif kind == "grandchildren":
            for _ in range(2):
                subprocess.Popen(["sh", "-c", f"trap '' TERM; while true; do sleep {FOR_EVER_S}; done"])
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "nan":
            return (np.full(3, np.nan, np.float32), *others)
        elif kind == "shape":
            return (np.zeros(4, np.float32), *others)
        elif kind == "none":
            return None
        elif kind == "slow_reset":
            self._is_slow = True
        elif kind == "changed_shape":
            self._is_changed = True
            return (self._seen(), *others)
        return answer

    def _leak(self) -> None:
        while sum(map(len, self._leaked)) < self._most_leaked:
            self._leaked.append(os.urandom(1024) * (LEAK_BYTES // 1024))
            sleep(LEAK_PAUSE_S)
