"""What several runners of Stable-Baselines3, and of sbx, which has its interface, have in common."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import numpy as np
import task
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv


class EnvPoolVecEnv(VecEnv):  # type: ignore[misc]
    """EnvPool's vector as SB3 takes it: where an episode has ended, the next one begins at once."""

    def __init__(self, pool: Any, num_envs: int) -> None:
        self.pool = pool
        super().__init__(num_envs, pool.observation_space, pool.action_space)

    def reset(self) -> Any:
        return self.pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        obs, rewards, terminated, truncated, _ = self.pool.step(self.actions)
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in dones]
        ended = np.flatnonzero(dones)
        if len(ended):
            obs = obs.copy()
        for row in ended:
            infos[row] = {"terminal_observation": obs[row].copy(), "TimeLimit.truncated": bool(truncated[row])}
        if len(ended):
            obs[ended] = self.pool.reset(env_id=ended.astype(np.int32))[0]
        return obs, rewards, dones, infos

    def close(self) -> None:
        self.pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        del indices
        return [getattr(self.pool, attr_name, None)] * self.num_envs

    def set_attr(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def env_method(self, *args: Any, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        del wrapper_class, indices
        return [False] * self.num_envs


class Clock(BaseCallback):  # type: ignore[misc]
    """The times at the first step after the warm-up; SB3 learns in whole rounds, as it does before the last."""

    def __init__(self, warmup: int) -> None:
        super().__init__()
        self.warmup = warmup
        self.begun: tuple[int, float, float] | None = None

    def _on_rollout_start(self) -> None:
        if self.begun is None and self.num_timesteps >= self.warmup:
            self.begun = self.num_timesteps, process_time(), perf_counter()

    def _on_step(self) -> bool:
        return True

    def rates(self) -> task.Answer:
        """Steps per CPU second of all threads and per second, from then until now."""
        assert self.begun is not None, "the warm-up is shorter than the run"
        steps, cpu, wall = self.begun
        steps = self.num_timesteps - steps
        return {"per_cpu_s": steps / (process_time() - cpu), "per_s": steps / (perf_counter() - wall)}
