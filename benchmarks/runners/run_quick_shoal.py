"""shoal's side of `quick.py`."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import task

import shoal


def ppo(
    env: str,
    num_envs: int,
    batch: int,
    minibatch: int,
    epochs: int,
    iterations: int,
    activation: str = "tanh",
    extra: dict[str, Any] | None = None,
) -> task.Answer:
    """Iterations of the whole algorithm in one process, after one for warming up; `extra` are more settings."""
    config = {
        "num_envs_per_worker": num_envs,
        "train_batch_size": batch,
        "sgd_minibatch_size": minibatch,
        "num_sgd_iter": epochs,
        "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": activation, "vf_share_layers": False},
        "seed": 0,
        **(extra or {}),
    }
    with shoal.PPO(env=env, config=config) as trainer:
        trainer.train()
        started, cpu = perf_counter(), process_time()
        steps = sum(trainer.train()["timesteps_this_iter"] for _ in range(iterations))
        return {"per_cpu_s": steps / (process_time() - cpu), "per_s": steps / (perf_counter() - started)}


if __name__ == "__main__":
    task.main({"ppo": ppo})
