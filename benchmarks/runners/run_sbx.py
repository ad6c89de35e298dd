"""The side of sbx, which is Stable-Baselines3 on JAX, of the benchmark of soft actor-critic."""

from __future__ import annotations

from time import perf_counter, process_time

import task
from sbx import SAC
from stable_baselines3.common.env_util import make_vec_env


def sac(num_envs: int, warmup: int, steps: int, hiddens: list[int], batch: int, learning_starts: int) -> task.Answer:
    """Soft actor-critic on Pendulum-v1: one update for each step."""
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=num_envs, seed=0),
        batch_size=batch,
        learning_starts=learning_starts,
        train_freq=1,
        gradient_steps=num_envs,
        policy_kwargs={"net_arch": hiddens},
        seed=0,
    )
    model.learn(warmup)  # and compile
    started, begun = perf_counter(), process_time()
    model.learn(steps, reset_num_timesteps=False)
    return {"per_cpu_s": steps / (process_time() - begun), "per_s": steps / (perf_counter() - started)}


if __name__ == "__main__":
    task.main({"sac": sac})
