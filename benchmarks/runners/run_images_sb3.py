"""Stable-Baselines3's side of the benchmark of Atari frames."""

from __future__ import annotations

from time import process_time
from typing import Any

import ale_py
import gymnasium as gym
import images_work
import numpy as np
import task
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack


class EnvPoolVecEnv(VecEnv):  # type: ignore[misc]
    """EnvPool's vector as SB3 takes it: where an episode has ended, the next one begins at once."""

    def __init__(self) -> None:
        self.pool = images_work.envpool_pool()
        super().__init__(images_work.NUM_ENVS, self.pool.observation_space, self.pool.action_space)

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
    """The CPU time at the first step after the warm-up; SB3 learns in whole rounds, as it does before the last."""

    def __init__(self, warmup: int) -> None:
        super().__init__()
        self.warmup = warmup
        self.begun: tuple[int, float] | None = None

    def _on_rollout_start(self) -> None:
        if self.begun is None and self.num_timesteps >= self.warmup:
            self.begun = self.num_timesteps, process_time()

    def _on_step(self) -> bool:
        return True


def envs_of(frames: str) -> VecEnv:
    """Breakout's frames, by SB3's own preprocessing or EnvPool's."""
    if frames == "envpool":
        return EnvPoolVecEnv()
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    wrapping = {"terminal_on_life_loss": False, "clip_reward": False}
    return VecFrameStack(
        make_atari_env("BreakoutNoFrameskip-v4", images_work.NUM_ENVS, seed=0, wrapper_kwargs=wrapping), 4
    )


def ppo(frames: str, warmup: int, steps: int) -> task.Answer:
    """Steps per CPU second of whole iterations of PPO."""
    return measured(PPO("CnnPolicy", envs_of(frames), device="cpu", seed=0, **images_work.PPO), warmup, steps)


def dqn(frames: str, warmup: int, steps: int) -> task.Answer:
    """Steps per CPU second of DQN once it learns."""
    return measured(DQN("CnnPolicy", envs_of(frames), device="cpu", seed=0, **images_work.DQN), warmup, steps)


def measured(model: Any, warmup: int, steps: int) -> task.Answer:
    """Steps per CPU second of all threads after a warm-up."""
    clock = Clock(warmup)
    model.learn(warmup + steps, callback=clock)
    assert clock.begun is not None
    begun, started = clock.begun
    return {"steps_per_cpu_s": (model.num_timesteps - begun) / (process_time() - started)}


if __name__ == "__main__":
    task.main({f.__name__: f for f in (ppo, dqn)})
