"""RLtools' side: its PPO in C++, compiled for the task at first use, on Gymnasium's Pendulum-v1."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import gymnasium as gym
import task
from gymnasium.wrappers import RescaleAction
from rltools import PPO

SEED = 0


def environment() -> gym.Env[Any, Any]:
    """As RLtools' own example makes it."""
    env = RescaleAction(gym.make("Pendulum-v1"), -1, 1)
    env.reset(seed=SEED)
    return env


def pendulum(
    activation: str, iterations: int, num_envs: int, steps_per_env: int, minibatch: int, epochs: int
) -> task.Answer:
    """Steps per CPU second and per second of the whole algorithm, after one iteration for warming up."""
    module = PPO(
        environment,
        enable_evaluation=False,
        interface_name=f"bench_{activation}",
        N_ENVIRONMENTS=num_envs,
        ON_POLICY_RUNNER_STEPS_PER_ENV=steps_per_env,
        BATCH_SIZE=minibatch,
        N_EPOCHS=epochs,
        ACTOR_ACTIVATION_FUNCTION=activation.upper(),
        CRITIC_ACTIVATION_FUNCTION=activation.upper(),
        TOTAL_STEP_LIMIT=10_000_000,
    )
    state = module.State(SEED)
    state.step()
    started, cpu = perf_counter(), process_time()
    for _ in range(iterations):
        state.step()
    steps = iterations * num_envs * steps_per_env
    return {"per_cpu_s": steps / (process_time() - cpu), "per_s": steps / (perf_counter() - started)}


if __name__ == "__main__":
    task.main({"pendulum": pendulum})
