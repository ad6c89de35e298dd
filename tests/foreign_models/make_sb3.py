"""Makes the files of this folder that Stable-Baselines3 has written, each with what its policy does.

    pip install stable-baselines3==2.9.2 gymnasium==1.4.0
    python tests/foreign_models/make_sb3.py

Each model is trained for a moment, so that no layer is as it began. `NAME.npz` has 1000 observations and the actions of
the model's own `predict(deterministic=True)`; where statistics belong to it, they are in `NAME.pkl`, as VecNormalize
saves them. Names say the algorithm and the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

HERE = Path(__file__).parent
COUNT = 1000


def observations(env: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Observations of random episodes, and some from far outside of them."""
    seen = []
    obs = env.reset()
    for step in range(COUNT):
        seen.append(obs[0])
        obs, *_ = env.step([env.action_space.sample()])
        if step % 10 == 9:
            seen[-1] = (seen[-1] + rng.normal(size=seen[-1].shape) * 2).astype(seen[-1].dtype)
    return np.stack(seen)


def make(name: str, kind: Any, env_id: str, normalized: bool = False, steps: int = 600, **settings: Any) -> None:
    torch.set_num_threads(1)
    env: Any = DummyVecEnv([lambda: gym.make(env_id)])
    env.seed(1)
    env.action_space.seed(1)
    if normalized:
        env = VecNormalize(env)
    model = kind("MlpPolicy", env, seed=1, device="cpu", **settings)
    model.learn(steps)
    seen = observations(DummyVecEnv([lambda: gym.make(env_id)]), np.random.default_rng(1))
    if normalized:
        env.training = False
        env.save(HERE / f"{name}.pkl")
        actions, _ = model.predict(env.normalize_obs(seen), deterministic=True)
    else:
        actions, _ = model.predict(seen, deterministic=True)
    assert len(np.unique(actions)) > 1, "a policy that always does the same tells nothing"
    model.save(HERE / f"{name}.zip", exclude=["_last_obs", "ep_info_buffer"])
    np.savez_compressed(HERE / f"{name}.npz", obs=seen, actions=actions)


if __name__ == "__main__":
    small = {"net_arch": [16, 16]}
    make("sb3_ppo_cartpole", PPO, "CartPole-v1", n_steps=128, policy_kwargs=small)
    make(
        "sb3_a2c_pendulum",
        A2C,
        "Pendulum-v1",
        normalized=True,
        policy_kwargs={"net_arch": {"pi": [16], "vf": [12]}, "activation_fn": torch.nn.ReLU},
    )
    make(
        "sb3_dqn_cartpole",
        DQN,
        "CartPole-v1",
        steps=1500,
        learning_starts=50,
        train_freq=1,
        target_update_interval=50,
        learning_rate=3e-3,
        policy_kwargs=small,
    )
    make("sb3_sac_pendulum", SAC, "Pendulum-v1", steps=250, learning_starts=50, policy_kwargs=small)
