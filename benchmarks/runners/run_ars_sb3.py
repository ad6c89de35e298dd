"""sb3-contrib's side of augmented random search."""

from __future__ import annotations

from statistics import fmean
from time import process_time
from typing import Any

import task
from sb3_contrib import ARS
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize


def learn(env: str, steps: int, seed: int, evaluated: int, same: dict[str, Any] | None = None) -> task.Answer:
    """What the centre of the search returns after so many steps, and steps per CPU second on the way.

    A linear policy, which shoal has by default too. `same` are shoal's settings: then observations are normalised too.
    """
    envs: Any = make_vec_env(env, n_envs=1, seed=seed)
    own: dict[str, Any] = {}
    if same is not None:
        envs = VecNormalize(envs, norm_reward=False)
        pairs = same["num_rollouts"] // 2
        own = {"n_delta": pairs, "n_top": pairs, "learning_rate": same["lr"], "delta_std": same["noise_stdev"]}
    model = ARS("LinearPolicy", envs, device="cpu", seed=seed, **own)
    begun = process_time()
    model.learn(steps)
    cpu_s = process_time() - begun
    if same is not None:
        envs.training = False
    returns, _ = evaluate_policy(model, envs, evaluated, return_episode_rewards=True)
    done = model.num_timesteps
    return {"return": fmean(returns), "steps": done, "per_cpu_s": done / cpu_s}


if __name__ == "__main__":
    task.main({"learn": learn})
