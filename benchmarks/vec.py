"""Steps per second of `shoal.make_vec` beside AsyncVectorEnv, and of `shoal.sb3.RayVecEnv` beside SubprocVecEnv.

    python benchmarks/vec.py [--quick]

The same environments with the same random actions: CartPole, which is quick, and a simulator that waits 2 ms a step.
`processes` has each environment in a process of its own, `workers` the same below two actors of Ray, `8 workers` an
actor for each environment, and `here` is make_vec in one process; those with `sb3` are the same as a VecEnv of
Stable-Baselines3. `async` and `subproc` are the others' ways to a process each. So all but `here` have a process for
each environment. Repeats are interleaved; ratios are those of medians.
"""

from __future__ import annotations

import argparse
from time import perf_counter, sleep
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from record import Bar, Record, show_bars, spread
from stable_baselines3.common.vec_env import SubprocVecEnv

import shoal
from shoal.sb3 import RayVecEnv

NUM_ENVS = 8
NUM_WORKERS = 2
WAIT_S = 0.002
SHARE = 0.05  # of a core for each worker, as Ray counts: all vectors are there at once, and one of them steps


class Waiter(gym.Env[Any, Any]):
    """A simulator that waits."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:  # noqa: ARG002
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> Any:  # noqa: ARG002
        sleep(WAIT_S)
        self.taken += 1
        return np.zeros(4, np.float32), 0.0, False, self.taken == 200, {}


def cartpole() -> Any:
    return gym.make("CartPole-v1", disable_env_checker=True)


def made(case: str, task: str) -> Any:
    """A vector of environments, of ours or of another library."""
    ours: Any = "CartPole-v1" if task == "cartpole" else Waiter
    single: Any = cartpole if task == "cartpole" else Waiter
    if case == "async":
        return AsyncVectorEnv([single] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    if case == "subproc":
        return SubprocVecEnv([single] * NUM_ENVS, start_method="fork")
    make = RayVecEnv if case.startswith("sb3") else shoal.make_vec
    if case.endswith("8 workers"):
        return make(ours, num_envs=NUM_ENVS, num_workers=NUM_ENVS, num_cpus_per_worker=SHARE)
    if case.endswith("workers"):
        return make(
            ours, num_envs=NUM_ENVS, num_workers=NUM_WORKERS, num_cpus_per_worker=SHARE, env_isolation="process"
        )
    return make(ours, num_envs=NUM_ENVS, env_isolation="process" if case.endswith("processes") else "none")


def rate(env: Any, steps: int) -> float:
    """Steps of single environments per second."""
    actions = np.random.default_rng(1).integers(0, 2, (steps, NUM_ENVS))
    start = perf_counter()
    for row in actions:
        env.step(row)
    return steps * NUM_ENVS / (perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    repeats, steps = (3, {"cartpole": 300, "waiter": 60}) if quick else (7, {"cartpole": 2000, "waiter": 300})
    settings = {"num_envs": NUM_ENVS, "num_workers": NUM_WORKERS, "wait_s": WAIT_S, "quick": quick, **steps}
    record = Record("vec", ["shoal"], settings)
    results: dict[str, Any] = {}
    for task in ("cartpole", "waiter"):
        cases = ("here", "processes", "workers", "async", "sb3 processes", "sb3 workers", "sb3 8 workers", "subproc")
        envs = {case: made(case, task) for case in cases}
        rates: dict[str, list[float]] = {case: [] for case in cases}
        try:
            for env in envs.values():
                env.reset()
                rate(env, 20)
            for _ in range(repeats):
                for case, env in envs.items():
                    rates[case].append(rate(env, steps[task]))
        finally:
            for env in envs.values():
                env.close()
        results[task] = {case: spread(values) for case, values in rates.items()}
    bars = []
    for task, found in results.items():
        for own, other in (("processes", "async"), ("sb3 processes", "subproc")):
            bars.append(Bar(f"{task}: {own} / {other}", found[own]["median"] / found[other]["median"], 1.0, True))
        for own in ("sb3 workers", "sb3 8 workers"):
            ratio = found[own]["median"] / found["subproc"]["median"]
            bars.append(Bar(f"{task}: {own} / subproc", ratio, 1.0 if task == "waiter" else 0.1, True))
    show_bars(bars)
    if not quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
