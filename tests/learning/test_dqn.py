"""DQN where every action's value is known beforehand, and on CartPole with default settings."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal

GAMMA = 0.5
SETTINGS: dict[str, Any] = {
    "gamma": GAMMA,
    "num_envs_per_worker": 4,
    "learning_starts": 100,
    "target_network_update_freq": 100,
    "exploration_config": {"initial_epsilon": 1.0, "final_epsilon": 1.0},
    "lr": 3e-3,
    "seed": 1,
}


class Chain(gym.Env[Any, Any]):
    """Two actions: 1 goes on, 0 stays; a reward of 1 for each step onto the last of three places, where it ends.

    With `ends` false the last place leads to itself for ever, and the episode is truncated after 8 steps.
    """

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)
    ends = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.time = 0
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place = min(self.place + int(action), 2)
        self.time += 1
        arrived = self.place == 2
        return self.place, float(arrived), arrived and self.ends, self.time >= 8, {}


class EndlessChain(Chain):
    ends = False


def values(trainer: shoal.DQN, *observations: int) -> np.ndarray[Any, Any]:
    """The value of every action for each observation, in the environment's own rewards."""
    policy = trainer.get_policy()
    rows = policy.obs_spec.allocate(len(observations))
    for row, obs in enumerate(observations):
        policy.obs_spec.put(obs, rows, row)
    outputs, state_values, _ = policy.network.forward(policy.encoder(rows))
    scale = np.float32(trainer.learner.rewards.divisor)  # type: ignore[attr-defined]
    if not trainer.config.dueling:  # type: ignore[attr-defined]
        return outputs * scale
    return scale * (outputs + (state_values - outputs.mean(axis=1))[:, None])


@pytest.mark.repeats(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"n_step": 1},
        {"n_step": 1, "dueling": False, "double_q": False},
        {"n_step": 1, "replay_buffer_config": {"prioritized_replay": True, "prioritized_replay_beta": 1.0}},
        {"n_step": 1, "observation_filter": "NoFilter", "framework": "torch"},
    ],
    ids=["double and dueling", "plain", "prioritised", "torch"],
)
@pytest.mark.parametrize("ends", [True, False], ids=["terminated", "truncated"])
def test_values_are_those_of_the_best_actions_from_there(changes: dict[str, Any], ends: bool) -> None:
    last = 1.0 if ends else 1 / (1 - GAMMA)  # what arriving is worth
    known = [[GAMMA * GAMMA * last, GAMMA * last], [GAMMA * last, last]]
    with shoal.DQN(env=Chain if ends else EndlessChain, config={**SETTINGS, **changes}) as trainer:
        for _ in range(4):
            trainer.train()
        np.testing.assert_allclose(values(trainer, 0, 1), known, atol=0.06)


def test_several_steps_at_once_carry_a_late_reward_back() -> None:
    # Rewards of up to three steps are those of the actions that were taken: greedy ones must make most of them.
    greedy = {"exploration_config": {"initial_epsilon": 1.0, "final_epsilon": 0.1, "epsilon_timesteps": 2000}}
    with shoal.DQN(env=Chain, config={**SETTINGS, **greedy, "n_step": 3}) as trainer:
        for _ in range(4):
            trainer.train()
        assert values(trainer, 0, 1).argmax(axis=1).tolist() == [1, 1]
        assert trainer.evaluate(episodes=4)["episode_len_mean"] == 2


def test_cartpole_learns_with_default_settings() -> None:
    with shoal.DQN(env="CartPole-v1") as trainer:
        best = 0.0
        while trainer.timesteps_total < 60_000 and best < 195:
            best = max(best, trainer.train()["episode_reward_mean"])
    assert best >= 195


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_cartpole_is_solved(seed: int) -> None:
    with shoal.DQN(env="CartPole-v1", config={"seed": seed}) as trainer:
        best = 0.0
        while trainer.timesteps_total < 200_000 and best < 475:
            best = max(best, trainer.train()["episode_reward_mean"])
    assert best >= 475
