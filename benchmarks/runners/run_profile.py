"""A prediction of `shoal profile` for one layout, and a run of it right afterwards."""

from __future__ import annotations

import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import task

import shoal
from shoal.config.experiment import algorithm_config
from shoal.data.throughput import predicted
from shoal.envs.making import env_maker
from shoal.machine.cores import cores
from shoal.runs.forecast import envs_of, layout_for
from shoal.runs.measuring import ProfileBudget
from shoal.runs.profiling import measured_costs

SLEEPING = f"{Path(__file__).with_name('simulators.py')}:Sleeping"
ENVS: dict[str, dict[str, Any]] = {
    "CartPole": {"env": "CartPole-v1"},
    "Pendulum": {"env": "Pendulum-v1"},
    "5 ms": {"env": SLEEPING, "env_config": {"sleep_s": 0.005}, "train_batch_size": 512},
    "100 ms": {"env": SLEEPING, "env_config": {"sleep_s": 0.1}, "train_batch_size": 64},
    "uneven": {"env": SLEEPING, "env_config": {"sleep_s": 0.005, "uneven": 0.05}, "train_batch_size": 512},
}


def speed() -> float:
    """How much a process computes here in a second of the clock, Python and small matrices by turns: median of nine."""
    rows, weights = np.ones((64, 64)), np.full((64, 64), 1 / 64)
    rates = []
    for _ in range(9):
        began = perf_counter()
        for _ in range(300):
            rows = np.tanh(rows @ weights)
            sum(range(1000))
        rates.append(300 / (perf_counter() - began))
    return statistics.median(rates)


def pair(case: str, num_workers: int, is_isolated: bool, seconds: float, least_s: float) -> task.Answer:
    """Steps per second as predicted, with the interval, and as a run has them; parts of an iteration, in seconds."""
    tree = {
        **ENVS[case],
        "num_workers": num_workers,
        "env_isolation": "process" if is_isolated else "none",
        "log_level": "ERROR",
    }
    config = algorithm_config("PPO", tree)
    speeds = [speed()]
    costs = measured_costs(config, env_maker(config.env), ProfileBudget(seconds, with_others=False), 60.0)
    speeds.append(speed())
    layout = layout_for(config, num_workers, envs_of(config, costs), is_isolated, 1, cores())
    found = predicted(costs, layout)
    with shoal.PPO(config=tree) as trainer:
        trainer.train()
        results = []
        until = perf_counter() + least_s
        while len(results) < 3 or perf_counter() < until:
            results.append(trainer.train())
    speeds.append(speed())
    names = {"environment": "env", "policy": "policy", "messages": "communicate", "learner": "learn"}
    return {
        "predicted": found.steps_per_s.middle,
        "low": found.steps_per_s.low,
        "high": found.steps_per_s.high,
        "real": statistics.median(result["timesteps_per_s"] for result in results),
        "speeds": speeds,  # of the machine: before the prediction, before the run and after it
        "predicted_s": dict(found.parts),
        "real_s": {
            part: statistics.median(result["timers"][f"{name}_s"] for result in results) for part, name in names.items()
        },
    }


if __name__ == "__main__":
    task.main({"pair": pair})
