"""A training loop of one's own, as CleanRL writes them: PPO in one file, on environments that shoal supervises.

python own_loop.py [iterations] [num_workers]
"""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import shoal


def main(iterations: int = 60, num_workers: int = 0) -> float:
    torch.manual_seed(1)
    envs = shoal.make_vec("CartPole-v1", num_envs=8, num_workers=num_workers, num_cpus_per_worker=0.5)
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
    steps, gamma, lambda_ = 64, 0.99, 0.95
    obs = torch.zeros(steps, 8, 4)
    actions, log_probs, rewards, values, next_values, ends = torch.zeros(6, steps, 8)
    seen, returns = torch.tensor(envs.reset(seed=1)[0]), [0.0]
    for _ in range(iterations):
        for t in range(steps):
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=actor(seen))
                action = policy.sample()
                obs[t], actions[t], log_probs[t], values[t] = seen, action, policy.log_prob(action), critic(seen)[:, 0]
                after, reward, terminated, truncated, infos = envs.step(action.numpy())
                done = terminated | truncated
                successor = after.copy()
                if done.any():  # autoreset is in the same step: the true successor is in the infos
                    successor[done] = np.stack(infos["final_obs"][done])
                    returns += infos["episode"]["r"][done].tolist()
                next_values[t] = critic(torch.tensor(successor))[:, 0] * torch.tensor(~terminated)
                rewards[t], ends[t], seen = torch.tensor(reward), torch.tensor(done), torch.tensor(after)
        advantages, last = torch.zeros(steps, 8), torch.zeros(8)
        for t in reversed(range(steps)):
            last = rewards[t] + gamma * next_values[t] - values[t] + gamma * lambda_ * (1 - ends[t]) * last
            advantages[t] = last
        targets = (advantages + values).flatten()
        for _ in range(4):
            for rows in torch.randperm(steps * 8).split(128):
                policy = torch.distributions.Categorical(logits=actor(obs.flatten(0, 1)[rows]))
                gained = advantages.flatten()[rows]
                gained = (gained - gained.mean()) / (gained.std() + 1e-8)
                ratio = (policy.log_prob(actions.flatten()[rows]) - log_probs.flatten()[rows]).exp()
                surrogate = torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained).mean()
                value_loss = (critic(obs.flatten(0, 1)[rows])[:, 0] - targets[rows]).square().mean()
                optimizer.zero_grad()
                (0.5 * value_loss - surrogate - 0.01 * policy.entropy().mean()).backward()
                optimizer.step()
    envs.close()
    return float(np.mean(returns[-20:]))


if __name__ == "__main__":
    print(f"mean return of the last 20 episodes: {main(*map(int, sys.argv[1:])):.1f}")
