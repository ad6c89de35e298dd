"""What sb3-contrib's TRPO makes of its first batches: each batch, and the weights before and after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import task
from sb3_contrib import TRPO
from stable_baselines3.common.env_util import make_vec_env

RECORDED = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")


def steps(env: str, iterations: int, file: str) -> task.Answer:
    """Train for so many iterations with the peer's defaults, and write arrays named ITERATION/NAME to a file."""
    model = TRPO("MlpPolicy", make_vec_env(env, n_envs=1, seed=0), device="cpu", seed=0)
    train = model.train
    kept: dict[str, Any] = {}
    done = 0

    def weights(when: str) -> None:
        for name, parameter in model.policy.named_parameters():
            kept[f"{done}/{when}/{name}"] = parameter.detach().numpy().copy()

    def recorded_train() -> None:
        nonlocal done
        weights("before")
        for name in RECORDED:
            kept[f"{done}/{name}"] = getattr(model.rollout_buffer, name).copy()
        kept[f"{done}/final_obs"] = model._last_obs.copy()
        kept[f"{done}/ended"] = model._last_episode_starts.copy()
        train()
        weights("after")
        done += 1

    model.train = recorded_train
    model.learn(iterations * model.n_steps)
    np.savez(file, **kept)
    return {"iterations": done}


if __name__ == "__main__":
    task.main({"steps": steps})
