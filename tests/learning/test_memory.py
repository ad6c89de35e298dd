"""What can only be learned with memory, in environments where a policy without any gets nothing on average."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal

pytest.importorskip("torch")


class RepeatAfterMe(gym.Env[Any, Any]):
    """The right action is what was seen two steps ago; what is seen is a coin, so the present says nothing about it."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)
    delay, steps = 2, 30

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen = [int(self.np_random.integers(2))]
        return self.seen[-1], {}

    def step(self, action: int) -> Any:
        reward = 0.0
        if len(self.seen) > self.delay:
            reward = 1.0 if action == self.seen[-1 - self.delay] else -1.0
        self.seen.append(int(self.np_random.integers(2)))
        return self.seen[-1], reward, len(self.seen) > self.steps, False, {}


class TMaze(gym.Env[Any, Any]):
    """A sign at the entrance tells which way to turn at the end of a corridor, where nothing tells it any more.

    Turning the right way is worth 1, the wrong way -1, and the sign is a coin: without memory, whatever is done at the
    junction is worth 0 on average.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)  # the sign, whether this is the junction
    action_space = spaces.Discrete(2)
    length = 8

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.sign, self.place = int(self.np_random.choice([-1, 1])), 0
        return np.array([self.sign, 0], np.float32), {}

    def step(self, action: int) -> Any:
        at_end = self.place == self.length
        self.place += 1
        reward = (1.0 if (action == 1) == (self.sign > 0) else -1.0) if at_end else 0.0
        return np.array([0, self.place == self.length], np.float32), reward, at_end, False, {}


MEMORIES = {
    "lstm": {"use_lstm": True, "lstm_cell_size": 32},
    "gru": {"use_gru": True, "lstm_cell_size": 32},
    "attention": {"use_attention": True, "attention_memory_inference": 10, "attention_dim": 32},
}


def reached(env: Any, algorithm: str, model: dict[str, Any], iterations: int, goal: float, **settings: Any) -> float:
    """The mean return in evaluation, as soon as it is the goal or after so many iterations."""
    config = {
        "num_envs_per_worker": 16,
        "train_batch_size": 1024,
        "sgd_minibatch_size": 128,
        "gamma": 0.9,
        "seed": 2,
        "model": {"fcnet_hiddens": [32], **model},
        **settings,
    }
    with getattr(shoal, algorithm)(env=env, config=config) as trainer:
        for _ in range(iterations):
            if (trainer.train()["episode_reward_mean"] or -np.inf) >= 0.8 * goal:
                found = float(trainer.evaluate(episodes=64)["episode_reward_mean"])
                if found >= goal:
                    return found
        return float(trainer.evaluate(episodes=64)["episode_reward_mean"])


@pytest.mark.repeats(0, slow=1)
@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
def test_repeat_after_me_is_learned_with_memory(memory: str) -> None:
    """With an LSTM, `examples/learning-ray/memory.yml` learns it in the tests that every change must pass."""
    model = {**MEMORIES[memory], "max_seq_len": 10, "vf_share_layers": True}
    assert reached(RepeatAfterMe, "PPO", model, 60, goal=26) >= 26  # of 28


@pytest.mark.repeats(0, slow=1)
@pytest.mark.parametrize(
    "memory", [pytest.param(name, marks=[pytest.mark.slow] * (name != "lstm")) for name in MEMORIES]
)
def test_a_t_maze_is_learned_with_memory(memory: str) -> None:
    model = {**MEMORIES[memory], "max_seq_len": 9, "vf_share_layers": True}
    assert reached(TMaze, "PPO", model, 40, goal=1.0) == 1


@pytest.mark.long
@pytest.mark.slow
def test_trpo_learns_with_memory() -> None:
    """Without a bonus for entropy it rests at about 19, with every seed, and goes on after 20 to 70 iterations."""
    model = {**MEMORIES["lstm"], "max_seq_len": 10}
    assert reached(RepeatAfterMe, "TRPO", model, 150, goal=26, max_kl=0.03, lambda_=0.8) >= 26


@pytest.mark.parametrize("env", [RepeatAfterMe, TMaze])
def test_without_memory_nothing_is_learned(env: Any) -> None:
    assert reached(env, "PPO", {}, 15, goal=np.inf) < (4 if env is RepeatAfterMe else 0.4)
