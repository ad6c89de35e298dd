"""The side of Stable-Baselines3, and of sbx, which is the same on JAX, of `quick.py`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import task
from sb3_parts import Clock, EnvPoolVecEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv


def ppo(
    library: str, env: str, num_envs: int, batch: int, minibatch: int, epochs: int, iterations: int, pool: bool = False
) -> task.Answer:
    """Iterations of the whole algorithm with the library's own defaults beyond the work that all share.

    The networks are 64x64 tanh apart for policy and values, which is the default of both. The first iteration is for
    warming up, and for sbx to compile. `pool`: the environments are EnvPool's, in one thread.
    """
    own: dict[str, Any] = {"device": "cpu"} if library == "stable_baselines3" else {}
    model = import_module(library).PPO(
        "MlpPolicy",
        envs_of(env, num_envs, pool),
        n_steps=batch // num_envs,
        batch_size=minibatch,
        n_epochs=epochs,
        seed=0,
        **own,
    )
    clock = Clock(warmup=batch)
    model.learn((1 + iterations) * batch, callback=clock)
    return clock.rates()


def envs_of(env: str, num_envs: int, pool: bool) -> VecEnv:
    """Gymnasium's environments one after another, or EnvPool's."""
    if not pool:
        return make_vec_env(env, n_envs=num_envs, seed=0)
    import envpool

    return EnvPoolVecEnv(envpool.make_gymnasium(env, num_envs=num_envs, num_threads=1, seed=0), num_envs)


if __name__ == "__main__":
    task.main({"ppo": ppo})
