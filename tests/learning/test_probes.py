"""Environments so small that every value and every best action is known beforehand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import shoal

GAMMA = 0.5
SETTINGS = {
    "gamma": GAMMA,
    "num_envs_per_worker": 4,
    "train_batch_size": 256,
    "sgd_minibatch_size": 64,
    "lr": 3e-3,
    "normalize_rewards": False,  # values are known in the unit of the rewards
    "seed": 1,
}


class Probe(gym.Env[Any, Any]):
    """An episode of `steps` steps; subclasses say what is seen and what it is worth."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(1)
    steps = 1
    truncates = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.obs = self.see()
        return self.obs, {}

    def step(self, action: Any) -> Any:
        reward = self.reward(int(action))
        self.time += 1
        self.obs = self.see()
        ended = self.time >= self.steps
        return self.obs, reward, ended and not self.truncates, ended and self.truncates, {}

    def see(self) -> Any:
        return np.zeros(1, np.float32)

    def reward(self, action: int) -> float:
        return 1.0


class SeenReward(Probe):
    """The reward is what is seen: -1 or 1."""

    def see(self) -> Any:
        return np.array([self.np_random.choice([-1, 1])], np.float32)

    def reward(self, action: int) -> float:
        return float(self.obs[0])


class LateReward(Probe):
    """Nothing at first, 1 on the second step."""

    steps = 2

    def see(self) -> Any:
        return np.array([self.time], np.float32)

    def reward(self, action: int) -> float:
        return float(self.time)


class RightAction(Probe):
    """Action 1 is worth 1, action 0 costs 1."""

    action_space = spaces.Discrete(2)

    def reward(self, action: int) -> float:
        return 2.0 * action - 1


class SeenAction(SeenReward):
    """The right action is the one that is seen."""

    action_space = spaces.Discrete(2)

    def reward(self, action: int) -> float:
        return 1.0 if (self.obs[0] > 0) == bool(action) else -1.0


class Endless(Probe):
    """0 and no reward at first, then 1 and reward 1 for ever; cut after four steps."""

    steps = 4
    truncates = True

    def see(self) -> Any:
        return np.array([min(self.time, 1)], np.float32)

    def reward(self, action: int) -> float:
        return float(self.time > 0)


class Uncut(Endless):
    """The same without an end of its own."""

    steps = 10**9


class Countdown(Probe):
    """Reward 1 for four steps, with the time left in sight, then truly over."""

    steps = 4

    def see(self) -> Any:
        return np.array([1 - self.time / 4], np.float32)


@pytest.fixture(params=["PPO", "TRPO"])
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def trained(algorithm: str, env: Any, iterations: int, **settings: Any) -> shoal.Trainer:
    trainer: shoal.Trainer = getattr(shoal, algorithm)(env=env, config={**SETTINGS, **settings})
    for _ in range(iterations):
        result = trainer.train()
    assert result["env_failures_total"] == 0
    return trainer


def values(trainer: shoal.Trainer, *seen: float) -> list[float]:
    policy = trainer.get_policy()
    inputs = policy.encoder((np.array(seen, np.float32)[:, None],))
    return [float(v) for v in policy.network.values(inputs)]


def right_shares(trainer: shoal.Trainer, seen: float, action: int) -> float:
    actions = trainer.compute_actions({k: np.array([seen], np.float32) for k in range(400)})
    return float(np.mean([a == action for a in actions.values()]))


def test_a_constant_reward_is_its_own_value(algorithm: str) -> None:
    with trained(algorithm, Probe, 10) as trainer:
        assert values(trainer, 0) == pytest.approx([1], abs=0.05)


def test_a_value_depends_on_what_is_seen(algorithm: str) -> None:
    with trained(algorithm, SeenReward, 15) as trainer:
        assert values(trainer, -1, 1) == pytest.approx([-1, 1], abs=0.05)


def test_a_late_reward_is_discounted(algorithm: str) -> None:
    with trained(algorithm, LateReward, 20) as trainer:
        assert values(trainer, 0, 1) == pytest.approx([GAMMA, 1], abs=0.05)


def test_the_better_action_is_found(algorithm: str) -> None:
    with trained(algorithm, RightAction, 15) as trainer:
        assert right_shares(trainer, 0, action=1) > 0.97
        assert values(trainer, 0) == pytest.approx([1], abs=0.05)


def test_the_better_action_depends_on_what_is_seen(algorithm: str) -> None:
    with trained(algorithm, SeenAction, 20) as trainer:
        assert right_shares(trainer, -1, action=0) > 0.97
        assert right_shares(trainer, 1, action=1) > 0.97
        assert values(trainer, -1, 1) == pytest.approx([1, 1], abs=0.05)


@pytest.mark.repeats(3)
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (Endless, {}),
        (Uncut, {"horizon": 4}),
        (lambda: TimeLimit(Uncut(), 4), {}),
        (lambda: gym.vector.SyncVectorEnv([Endless] * 4), {}),
        (Endless, {"batch_mode": "complete_episodes"}),
    ],
    ids=["its_own_flag", "horizon", "time_limit", "native_vector", "complete_episodes"],
)
def test_a_truncated_episode_is_worth_as_much_as_an_endless_one(
    algorithm: str, env: Any, settings: dict[str, Any]
) -> None:
    forever = 1 / (1 - GAMMA)
    with trained(algorithm, env, 15, **settings) as trainer:
        assert values(trainer, 0, 1) == pytest.approx([GAMMA * forever, forever], abs=0.05)


def test_a_terminated_episode_is_worth_what_was_left(algorithm: str) -> None:
    left = [sum(GAMMA**i for i in range(n)) for n in (4, 3, 2, 1)]
    with trained(algorithm, Countdown, 25) as trainer:
        assert values(trainer, 1, 0.75, 0.5, 0.25) == pytest.approx(left, abs=0.05)
