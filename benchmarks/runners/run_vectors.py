"""shoal's side of `vectors.py`: PPO whose environments step as one."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import task

import shoal


def rate(iterations: int, work: dict[str, Any]) -> task.Answer:
    """Steps per CPU second and per second of the whole algorithm, after two iterations for warming up."""
    with shoal.PPO(config={"env": "CartPole-v1", "seed": 0, **work}) as trainer:
        for _ in range(2):
            trainer.train()
        started, begun = perf_counter(), process_time()
        steps = sum(trainer.train()["timesteps_this_iter"] for _ in range(iterations))
        return {"per_cpu_s": steps / (process_time() - begun), "per_s": steps / (perf_counter() - started)}


if __name__ == "__main__":
    task.main({"rate": rate})
