"""Ways to try out actions: what chance decides, and that it does not depend on the layout."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from shoal.config.dqn import DQNConfig, EpsilonGreedyConfig
from shoal.config.ppo import PPOConfig
from shoal.errors import ConfigError
from shoal.models.build import build_policy
from shoal.models.distributions import SquashedGaussian
from shoal.models.exploration import EpsilonGreedy, OrnsteinUhlenbeck, SoftQ

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


def test_epsilon_follows_its_schedule_from_the_start() -> None:
    assert greedy_of(epsilon_schedule=[[0, 0.3], [10, 0.1]]).epsilon == 0.3
    assert greedy_of(epsilon_schedule={"type": "step", "endpoints": [[0, 0.5]]}).epsilon == 0.5
    assert greedy_of(initial_epsilon=0.9).epsilon == 0.9


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_softq_draws_by_the_softmax_of_values(temperature: float) -> None:
    soft = SoftQ(3, temperature)
    values = np.tile(np.array([0.0, 1.0, -1.0], np.float32), (20_000, 1))
    actions = soft.sample(values + 100, soft.noise(np.random.default_rng(0), 20_000))
    wanted = np.exp(values[0] / temperature)
    assert np.bincount(actions[:, 0]) / 20_000 == pytest.approx(wanted / wanted.sum(), abs=0.01)
    assert soft.mode(values[:1]).tolist() == [[1]]


def test_correlated_noise_has_the_spread_of_independent_noise() -> None:
    ou = OrnsteinUhlenbeck(0.2, np.array([1, 2]))
    white = np.random.default_rng(0).standard_normal((50_000, 1, 3)).astype(np.float32)
    noise, last = white.copy(), np.zeros((1, 2), np.float32)
    ou.correlate(noise, last)
    x = noise[:, 0, 1:]
    np.testing.assert_array_equal(noise[..., 0], white[..., 0])
    np.testing.assert_array_equal(last[0], x[-1])
    assert x.std(axis=0) == pytest.approx([1, 1], abs=0.05)
    for lag in (1, 5):
        assert np.mean(x[lag:] * x[:-lag], axis=0) == pytest.approx([0.8**lag] * 2, abs=0.05)


def test_correlated_noise_goes_on_over_fragments() -> None:
    ou = OrnsteinUhlenbeck(0.2, np.array([0]))
    white = np.random.default_rng(0).standard_normal((10, 2, 1)).astype(np.float32)
    whole, parts = white.copy(), white.copy()
    ou.correlate(whole, np.ones((2, 1), np.float32))
    last = np.ones((2, 1), np.float32)
    ou.correlate(parts[:4], last)
    ou.correlate(parts[4:], last)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("kind", ["GaussianNoise", "OrnsteinUhlenbeckNoise"])
def test_noise_on_discrete_actions_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="has none"):
        build_policy(OBS, spaces.Discrete(3), PPOConfig(exploration_config={"type": kind}))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_given_spread_is_the_spread_and_no_gradient_reaches_it(framework: str) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    actions = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))
    noise = {"type": "GaussianNoise", "stddev": 0.25}
    policy = build_policy(OBS, actions, PPOConfig(exploration_config=noise, framework=framework))
    x = (np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32),)
    outputs, values, tape = policy.network.forward(x)
    assert np.exp(outputs[:, 2:4]) == pytest.approx(0.25)
    sampled = policy.distribution.sample(outputs, policy.noise(np.random.default_rng(1), 5))
    now = policy.distribution.evaluate(outputs, sampled, outputs)
    slope = policy.distribution.gradient(now, np.ones(5, np.float32), 1.0, 1.0)
    before = policy.get_weights()["log_std"]
    gradient = policy.network.vjp(tape, slope, np.zeros_like(values))
    policy.network.params -= gradient
    np.testing.assert_array_equal(policy.get_weights()["log_std"], before)
    assert not policy.distribution.fisher(outputs, np.ones_like(outputs))[:, 2:4].any()
    assert gradient.any()


def test_a_given_spread_stays_where_actions_are_squashed() -> None:
    noise = {"type": "GaussianNoise", "stddev": 0.25}
    config = PPOConfig(exploration_config=noise, squash_actions=True)
    policy = build_policy(OBS, spaces.Box(-2, 2, (2,)), config)
    assert isinstance(policy.distribution, SquashedGaussian)
    outputs, _, _ = policy.network.forward((np.zeros((5, 3), np.float32),))
    sampled = policy.distribution.sample(outputs, policy.noise(np.random.default_rng(1), 5))
    now = policy.distribution.evaluate(outputs, sampled, outputs)
    slope = policy.distribution.gradient(now, 1.0, 1.0, 1.0)
    assert slope[:, :2].any()
    assert not slope[:, 2:].any()
