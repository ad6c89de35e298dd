"""Tianshou's PPO on environments that shoal supervises.

python tianshou_ppo.py [epochs] [num_workers]
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

import shoal


class TianshouVector:
    """A vector of ours as Tianshou's collectors know one: they reset what has ended themselves, and step all rows."""

    is_async = False

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        self.envs = envs
        self.action_space = [envs.single_action_space] * len(self)
        self.observation_space = [envs.single_observation_space] * len(self)
        self.begun: Any = None  # where the next actions are taken: ended episodes were reset in the same step

    def __len__(self) -> int:
        return self.envs.num_envs

    def reset(self, env_id: Any = None, **keywords: Any) -> tuple[Any, Any]:
        if env_id is None:
            self.begun, _ = self.envs.reset(**keywords)
            env_id = range(len(self))
        return self.begun[env_id], np.array([{} for _ in env_id])

    def step(self, action: Any, id: Any = None) -> tuple[Any, ...]:
        if id is not None and len(id) < len(self):
            raise ValueError("step: every environment takes the step; collect by n_step and not by n_episode")
        self.begun, rewards, terminated, truncated, told = self.envs.step(action)
        after, infos = self.begun.copy(), [{"env_id": row} for row in range(len(self))]
        for row in np.flatnonzero(terminated | truncated):
            after[row] = told["final_obs"][row]
        return after, rewards, terminated, truncated, np.array(infos)

    def close(self) -> None:
        self.envs.close()


def main(epochs: int = 10, num_workers: int = 0) -> float:
    torch.manual_seed(1)
    made = shoal.make_vec("CartPole-v1", num_envs=8, num_workers=num_workers, num_cpus_per_worker=0.5)
    counted = gym.wrappers.vector.RecordEpisodeStatistics(made, buffer_length=20)
    envs = TianshouVector(counted)
    shape, choices = made.single_observation_space.shape, made.single_action_space
    actor = DiscreteActor(preprocess_net=Net(state_shape=shape, hidden_sizes=[64]), action_shape=choices.n)
    critic = DiscreteCritic(preprocess_net=Net(state_shape=shape, hidden_sizes=[64]))
    policy = DiscreteActorPolicy(actor=actor, dist_fn=torch.distributions.Categorical, action_space=choices)
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-3))
    collector = Collector(algorithm, envs, VectorReplayBuffer(total_size=4096, buffer_num=len(envs)))
    collector.reset(gym_reset_kwargs={"seed": 1})
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=epochs,
            epoch_num_steps=2048,
            collection_step_num_env_steps=512,
            update_step_num_repetitions=4,
            batch_size=128,
            show_progress=False,
        )
    )
    envs.close()
    return float(np.mean(counted.return_queue))


if __name__ == "__main__":
    print(f"mean return of the last episodes {main(*map(int, sys.argv[1:])):.1f}")
