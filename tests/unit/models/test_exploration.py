"""Epsilon-greedy acting: what chance decides, and that it does not depend on the layout."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from shoal.config.dqn import DQNConfig, EpsilonGreedyConfig
from shoal.models.build import build_policy
from shoal.models.exploration import EpsilonGreedy

OBS = spaces.Box(-1, 1, (3,), np.float32)


def greedy_of(num_envs: int = 8, n: int = 4, **config) -> EpsilonGreedy:
    return EpsilonGreedy(n, EpsilonGreedyConfig(**config), num_envs)


def test_chance_takes_any_action_alike_and_leaves_the_rest_to_the_values() -> None:
    chance = greedy_of()
    chance.epsilon = 0.4
    noise = chance.noise(np.random.default_rng(0), 20_000)
    counts = np.bincount(noise[:, 0].astype(int) + 1, minlength=5) / 20_000
    assert counts == pytest.approx([0.6, 0.1, 0.1, 0.1, 0.1], abs=0.01)
    values = np.random.default_rng(1).standard_normal((20_000, 4)).astype(np.float32)
    actions = chance.sample(values, noise)
    assert actions.shape == (20_000, 1)
    best = values.argmax(axis=1)
    np.testing.assert_array_equal(actions[:, 0], np.where(noise[:, 0] >= 0, noise[:, 0], best))
    np.testing.assert_array_equal(chance.mode(values)[:, 0], best)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_never_and_always(epsilon: float) -> None:
    chance = greedy_of()
    chance.epsilon = epsilon
    noise = chance.noise(np.random.default_rng(0), 5000)
    assert ((noise >= 0) == bool(epsilon)).all()


def test_as_much_is_drawn_whatever_epsilon_is() -> None:
    streams = [np.random.default_rng(3) for _ in range(2)]
    for stream, epsilon in zip(streams, (0.0, 0.9), strict=True):
        chance = greedy_of()
        chance.epsilon = epsilon
        chance.noise(stream, 17)
    assert streams[0].bit_generator.state == streams[1].bit_generator.state


def test_each_environment_has_a_share_of_its_own() -> None:
    ladder = greedy_of(8, type="PerWorkerEpsilonGreedy")
    shares = [ladder.epsilon_of(k) for k in range(8)]
    assert shares == pytest.approx([0.4 ** (1 + k) for k in range(8)])
    assert ladder.epsilon_of(None) == shares[-1]
    noise = ladder.noise(np.random.default_rng(0), 10_000, env_index=1)
    assert np.mean(noise >= 0) == pytest.approx(0.16, abs=0.02)
    assert greedy_of(1, type="PerWorkerEpsilonGreedy").epsilon_of(0) == pytest.approx(0.4)


def test_epsilon_travels_with_the_policy() -> None:
    one, two = (build_policy(OBS, spaces.Discrete(3), DQNConfig()) for _ in range(2))
    assert isinstance(one.distribution, EpsilonGreedy)
    assert isinstance(two.distribution, EpsilonGreedy)
    one.distribution.epsilon = 0.25
    two.set_state(one.get_state())
    assert two.distribution.epsilon == 0.25
    assert not one.is_stochastic


def test_a_choice_that_is_no_discrete_space_by_name_is_taken_too() -> None:
    for space in (spaces.MultiDiscrete([5]), spaces.Box(0, 4, (1,), np.int64)):
        policy = build_policy(OBS, space, DQNConfig())
        assert policy.distribution.num_inputs == 5
        assert space.contains(policy.compute_single_action(np.zeros(3, np.float32)))
