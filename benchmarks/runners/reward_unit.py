"""An environment whose rewards come in another unit, or whose first episode ends early."""

from __future__ import annotations

from itertools import count
from typing import Any

import gymnasium as gym

OUT_OF_STEP = "out-of-step:"
"""Before an environment's id: the first episode of each of eight ends after another eighth of its steps."""
_numbers = count()


class FirstEpisodeShort(gym.Wrapper[Any, Any, Any, Any]):
    """Truncates its first episode after so many steps, where it would be longer by itself."""

    def __init__(self, env: gym.Env[Any, Any], steps: int) -> None:
        super().__init__(env)
        self.left, self.begun = steps, False

    def reset(self, **options: Any) -> Any:
        """Begin an episode; after the first step, it is not the first one."""
        if self.begun:
            self.left = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        """One step."""
        self.begun = True
        obs, reward, terminated, truncated, info = super().step(action)
        self.left -= 1
        return obs, reward, terminated, truncated or self.left == 0, info


def made(env: str, unit: float, env_config: dict[str, Any]) -> gym.Env[Any, Any]:
    """The environment with every reward times `unit`."""
    if env.startswith(OUT_OF_STEP):
        whole: gym.Env[Any, Any] = made(env.removeprefix(OUT_OF_STEP), unit, env_config)
        limit = whole.get_wrapper_attr("spec").max_episode_steps
        return FirstEpisodeShort(whole, limit * (1 + next(_numbers) % 8) // 8)
    if env.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
    whole = gym.make(env, **env_config)
    if unit == 1:
        return whole
    return gym.wrappers.TransformReward(whole, lambda reward: unit * float(reward))
