"""An environment whose rewards come in another unit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def made(env: str, unit: float, env_config: dict[str, Any]) -> gym.Env[Any, Any]:
    """The environment with every reward times `unit`."""
    if env.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
    whole: gym.Env[Any, Any] = gym.make(env, **env_config)
    if unit == 1:
        return whole
    return gym.wrappers.TransformReward(whole, lambda reward: unit * float(reward))
