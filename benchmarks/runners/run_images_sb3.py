"""Stable-Baselines3's side of the benchmark of Atari frames."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import images_work
import task
from sb3_parts import Clock, EnvPoolVecEnv
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack


def envs_of(frames: str) -> VecEnv:
    """Breakout's frames, by SB3's own preprocessing or EnvPool's."""
    if frames == "envpool":
        return EnvPoolVecEnv(images_work.envpool_pool(), images_work.NUM_ENVS)
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
    """Steps per CPU second of all threads, and per second, after a warm-up."""
    clock = Clock(warmup)
    model.learn(warmup + steps, callback=clock)
    return clock.rates()


if __name__ == "__main__":
    task.main({f.__name__: f for f in (ppo, dqn)})
