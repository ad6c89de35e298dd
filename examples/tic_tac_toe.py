"""Tic-tac-toe by self-play: one policy plays both sides, until it never loses against random moves.

Run it with `python tic_tac_toe.py`; it needs PettingZoo: pip install 'shoal-rl[pettingzoo]'.
"""

import sys

import numpy as np
from pettingzoo.classic.tictactoe.tictactoe import raw_env

import shoal

CONFIG = {
    "num_envs_per_worker": 8,
    "timesteps_per_iteration": 10000,
    "gamma": 1.0,
    "n_step": 1,
    "lr_schedule": [[0, 1e-3], [20000, 1e-3], [80000, 1e-4]],
    "model": {"fcnet_hiddens": [128, 128]},
    "replay_buffer_config": {"capacity": 12000},  # games against the weak players of the past are forgotten
    "exploration_config": {"epsilon_timesteps": 10000, "final_epsilon": 0.15},
}


def game():
    """The game without the wrappers that check moves: the mask allows none that is against the rules."""
    return raw_env()


def play(policy, side, count, seed=0):
    """Losses, draws and wins of a policy on one side of so many games against random moves."""
    env, rng, ends = game(), np.random.default_rng(seed), [0, 0, 0]
    for _ in range(count):
        env.reset()
        for agent in env.agent_iter():
            obs, reward, terminated, truncated, _ = env.last()
            if terminated or truncated:
                ends[int(reward) + 1] += agent == side
                action = None
            elif agent == side:
                action = int(policy.compute_single_action(obs, explore=False))
            else:
                action = int(rng.choice(np.flatnonzero(obs["action_mask"])))
            env.step(action)
    return ends


def main(most_iterations=20, games=500):
    with shoal.DQN(env=game, config=CONFIG) as trainer:
        for _ in range(most_iterations):
            result = trainer.train()
            first, second = (play(trainer.get_policy(), side, games) for side in ("player_1", "player_2"))
            print(
                f"{result['timesteps_total']} steps; lost, drawn, won as first {first}, as second {second}", flush=True
            )
            if first[0] + second[0] == 0:
                print(f"Not one of {2 * games} games was lost.")
                return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
