"""shoal's side of `kernel.py`: PPO with NumPy and with the compiled kernel."""

from __future__ import annotations

from time import process_time
from typing import Any

import task

import shoal


def trainer_of(kernel: str, work: dict[str, Any]) -> shoal.PPO:
    """PPO on Pendulum-v1 in one process."""
    return shoal.PPO(env="Pendulum-v1", config={"kernel": kernel, "num_workers": 0, "seed": 0, **work})


def learning(rounds: int, work: dict[str, Any]) -> task.Answer:
    """CPU seconds of one update from the same batch, with each kernel in turns."""
    trainers = {kernel: trainer_of(kernel, work) for kernel in ("numpy", "compiled")}
    steps = work["train_batch_size"] // work["num_envs_per_worker"]
    batch = trainers["numpy"].workers.sample(steps).batch
    seconds: dict[str, list[float]] = {kernel: [] for kernel in trainers}
    for count in range(rounds + 1):
        for kernel, trainer in trainers.items():
            started = process_time()
            trainer.learner.update(batch, 0)
            if count:  # the first is for warming up
                seconds[kernel].append(process_time() - started)
    for trainer in trainers.values():
        trainer.stop()
    return seconds


def pendulum(kernel: str, iterations: int, work: dict[str, Any]) -> task.Answer:
    """Steps per CPU second of the whole algorithm, after one iteration for warming up."""
    with trainer_of(kernel, work) as trainer:
        trainer.train()
        started = process_time()
        steps = sum(trainer.train()["timesteps_this_iter"] for _ in range(iterations))
        return {"steps_per_cpu_s": steps / (process_time() - started)}


if __name__ == "__main__":
    task.main({"learning": learning, "pendulum": pendulum})
