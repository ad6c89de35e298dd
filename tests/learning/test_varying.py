"""Actions that come and go, offers to choose among, and crowds to look at: what is right is known beforehand.

Environments refuse actions that their mask rules out, so that one such action counts as a failure of the environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal

STEPS = 5
SETTINGS: dict[str, Any] = {"seed": 1, "num_envs_per_worker": 8}
ON_POLICY = {"train_batch_size": 512}
OFF_POLICY = {"learning_starts": 200, "exploration_config": {"epsilon_timesteps": 2000}, "n_step": 1}
ALGORITHMS = {"PPO": ON_POLICY, "TRPO": {**ON_POLICY, "max_kl": 0.05}, "DQN": OFF_POLICY}


class Episode(gym.Env[Any, Any]):
    """Five situations, one after another; subclasses draw them and judge what is done."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        reward = float(self.judge(action))
        self.time += 1
        return self.draw(), reward, self.time == STEPS, False, {}

    def flags(self, count: int) -> Any:
        mask = self.np_random.random(count) < 0.4
        mask[self.np_random.integers(count)] = True
        return mask


class Highest(Episode):
    """Right is the highest of the actions that are open; which are open is in the mask alone."""

    observation_space = spaces.Dict(observations=spaces.Box(-1, 1, (1,)), action_mask=spaces.Box(0, 1, (5,), np.int8))
    action_space: spaces.Space[Any] = spaces.Discrete(5)

    def draw(self) -> Any:
        self.mask = self.flags(5)
        return {"observations": np.zeros(1, np.float32), "action_mask": self.mask.astype(np.int8)}

    def judge(self, action: Any) -> bool:
        assert self.mask[action], f"{action} is not open"
        return bool(action == np.flatnonzero(self.mask)[-1])


class HighestOfEach(Highest):
    """The same for two choices and a number: a Dict of masks, of which one is a Tuple."""

    observation_space = spaces.Dict(
        observations=spaces.Box(-1, 1, (1,)),
        action_mask=spaces.Dict(
            pair=spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(4)]), one=spaces.MultiBinary(3)
        ),
    )
    action_space = spaces.Dict(one=spaces.Discrete(3), pair=spaces.MultiDiscrete([3, 4]), free=spaces.Box(-1, 1, (1,)))

    def draw(self) -> Any:
        self.masks = [self.flags(n) for n in (3, 3, 4)]
        one, *pair = (mask.astype(np.int8) for mask in self.masks)
        return {"observations": np.zeros(1, np.float32), "action_mask": {"one": one, "pair": tuple(pair)}}

    def judge(self, action: Any) -> bool:
        taken = [action["one"], *action["pair"]]
        assert all(mask[value] for mask, value in zip(self.masks, taken, strict=True))
        best = [np.flatnonzero(mask)[-1] for mask in self.masks]
        return np.mean(np.equal(taken, best)) if action["free"][0] > -2 else 0


class Market(Episode):
    """Right is the offer with most of what is asked for; how many there are differs, and so does their order."""

    observation_space = spaces.Dict(
        observations=spaces.Discrete(3),
        avail_actions=spaces.Box(-1, 1, (6, 3)),
        action_mask=spaces.MultiBinary(6),
    )
    action_space = spaces.Discrete(6)

    def draw(self) -> Any:
        self.asked = int(self.np_random.integers(3))
        self.mask = self.flags(6)
        self.offers = np.where(self.mask[:, None], self.np_random.uniform(-1, 1, (6, 3)), 0).astype(np.float32)
        return {"observations": self.asked, "avail_actions": self.offers, "action_mask": self.mask.astype(np.int8)}

    def judge(self, action: Any) -> bool:
        assert self.mask[action]
        worth = np.where(self.mask, self.offers[:, self.asked], -np.inf)
        return bool(worth[action] > worth.max() - 0.2)


class Crowd(Episode):
    """Right is whether any of those in sight is a friend; there may be none at all."""

    observation_space: spaces.Space[Any] = spaces.Dict(
        crowd=spaces.Dict(
            people=shoal.Repeated(spaces.Dict(friend=spaces.Discrete(2), looks=spaces.Box(-1, 1, (2,))), 4)
        ),
        weather=spaces.Box(-1, 1, (1,)),
    )
    action_space = spaces.Discrete(2)

    def draw(self) -> Any:
        people = [
            {
                "friend": int(self.np_random.random() < 0.25),
                "looks": self.np_random.uniform(-1, 1, 2).astype(np.float32),
            }
            for _ in range(self.np_random.integers(5))
        ]
        self.friends = sum(person["friend"] for person in people)
        return {"crowd": {"people": tuple(people)}, "weather": np.zeros(1, np.float32)}

    def judge(self, action: Any) -> bool:
        return bool(action == (self.friends > 0))


class OpenCrowd(Crowd):
    """The same numbers in a space that does not say how many there may be."""

    observation_space = spaces.Sequence(spaces.Box(0, 1, (2,)))

    def draw(self) -> Any:
        people = super().draw()["crowd"]["people"]
        return tuple(np.array([person["friend"], 1], np.float32) for person in people)


def share_right(algorithm: str, env: Any, iterations: int, **settings: Any) -> float:
    """How often the likeliest actions are right after training."""
    config = {**SETTINGS, **ALGORITHMS[algorithm], **settings}
    with getattr(shoal, algorithm)(env=env, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
        assert result["env_failures_total"] == 0
        evaluation = trainer.evaluate(episodes=80)
        assert evaluation["env_failures"] == 0
        return float(evaluation["episode_reward_mean"]) / STEPS


@pytest.mark.repeats(1)
@pytest.mark.parametrize(("algorithm", "iterations"), [("PPO", 10), ("TRPO", 12), ("DQN", 5)])
def test_the_best_of_what_is_open_is_found(algorithm: str, iterations: int) -> None:
    assert share_right(algorithm, Highest, iterations) > 0.95


@pytest.mark.repeats(1)
@pytest.mark.parametrize(("algorithm", "iterations"), [("PPO", 12), ("TRPO", 16)])
def test_the_best_of_each_choice_is_found(algorithm: str, iterations: int) -> None:
    assert share_right(algorithm, HighestOfEach, iterations) > 0.9


@pytest.mark.repeats(1)
@pytest.mark.parametrize(
    ("algorithm", "iterations"), [("PPO", 12), ("TRPO", 16), pytest.param("DQN", 8, marks=pytest.mark.slow)]
)
def test_the_best_offer_is_found(algorithm: str, iterations: int) -> None:
    pytest.importorskip("torch")
    assert share_right(algorithm, Market, iterations) > 0.9


@pytest.mark.repeats(1)
@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_a_crowd_is_understood(pooling: str) -> None:
    pytest.importorskip("torch")
    assert share_right("PPO", Crowd, 12, model={"sequence_pooling": pooling}) > 0.9


@pytest.mark.parametrize(("algorithm", "iterations"), [("TRPO", 16), pytest.param("DQN", 8, marks=pytest.mark.slow)])
def test_a_crowd_of_open_length_is_understood(algorithm: str, iterations: int) -> None:
    pytest.importorskip("torch")
    assert share_right(algorithm, OpenCrowd, iterations, model={"sequence_max_len": 4}) > 0.9


@pytest.mark.repeats(0, slow=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("PPO", {"train_batch_size": 20_000, "sgd_minibatch_size": 4000, "num_sgd_iter": 2}),
        ("TRPO", {"train_batch_size": 20_000, "sgd_minibatch_size": 4000}),
        ("DQN", {"timesteps_per_iteration": 20_000, "training_intensity": 0.2, "rollout_fragment_length": 50}),
    ],
)
def test_in_a_hundred_thousand_steps_no_closed_action_is_taken(algorithm: str, settings: dict[str, Any]) -> None:
    config = {**SETTINGS, "num_envs_per_worker": 40, **settings}
    with getattr(shoal, algorithm)(env=Highest, config=config) as trainer:
        while trainer.timesteps_total < 100_000:
            result = trainer.train()
        assert result["env_failures_total"] == 0


@pytest.mark.slow
def test_a_squashed_number_between_its_bounds_is_found() -> None:
    class Between(Episode):
        """Right is half of what is seen, on a scale of 10."""

        observation_space = spaces.Box(-1, 1, (1,))
        action_space = spaces.Box(-10, 10, (1,))

        def draw(self) -> Any:
            self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
            return self.seen

        def judge(self, action: Any) -> float:
            assert abs(action[0]) <= 10
            return float(1 - abs(action[0] / 10 - self.seen[0] / 2))

    for algorithm in ("PPO", "TRPO"):
        assert share_right(algorithm, Between, 25, squash_actions=True) > 0.85
