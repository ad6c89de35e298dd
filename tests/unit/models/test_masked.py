"""Masked outputs: exactly no probability, derivatives that are numbers, and the network contract as it is elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.dqn import DQNConfig, EpsilonGreedyConfig
from shoal.config.ppo import PPOConfig
from shoal.models.build import build_policy
from shoal.models.distributions import Categorical
from shoal.models.exploration import EpsilonGreedy, SoftQ
from shoal.models.masked import LEAST, MaskedNetwork, allowed_of
from shoal.models.mlp import MLP

BOX = spaces.Box(-1, 1, (3,))
HYBRID = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.MultiDiscrete([2, 3]), c=spaces.Discrete(4))


def policy_for(mask: spaces.Space, action: spaces.Space, **config):
    return build_policy(spaces.Dict(observations=BOX, action_mask=mask), action, PPOConfig(**config))


def a_network(columns=(0, 1, 2, 3, 4), outputs=5):
    return MaskedNetwork(MLP(3, outputs, (8,), seed=1), np.array(columns))


def situation(width=5, batch=7):
    rng = np.random.default_rng(0)
    mask = rng.random((batch, width)) < 0.5
    mask[np.arange(batch), rng.integers(0, width, batch)] = True
    return rng.standard_normal((batch, 3)).astype(np.float32), mask


def test_outputs_are_least_where_masked_and_the_networks_own_elsewhere() -> None:
    network, (x, mask) = a_network(), situation()
    own = network.network.act((x,)).copy()
    for outputs in (network.act((x, mask)), network.forward((x, mask))[0], network.forward_policy((x, mask))[0]):
        np.testing.assert_array_equal(outputs[mask], own[mask])
        assert (outputs[~mask] == LEAST).all()
        np.testing.assert_array_equal(allowed_of(outputs), mask)
    np.testing.assert_array_equal(network.values((x, mask)), network.network.values((x,)))


def test_rows_with_parameters_of_their_own_are_masked_too() -> None:
    network, (x, mask) = a_network(), situation()
    outputs = network.act_with((x, mask), np.repeat(network.params[None], 7, axis=0))
    np.testing.assert_allclose(outputs[mask], network.network.act((x,))[mask], rtol=1e-5)
    assert (outputs[~mask] == LEAST).all()


@pytest.mark.parametrize("columns", [(0, 1, 2, 3, 4), (3, 4, 0)])
def test_derivatives_are_those_of_the_masked_outputs(columns) -> None:
    network, (x, mask) = a_network(columns), situation(len(columns))
    rng = np.random.default_rng(3)
    d_outputs, tangent = rng.standard_normal((7, 5)), rng.standard_normal(len(network.params)).astype(np.float32)
    d_outputs = d_outputs.astype(np.float32)
    before = network.params.copy()

    def at(step: float):
        network.params[:] = before + step * tangent
        outputs = network.act((x, mask)).astype(np.float64)
        network.params[:] = before
        return outputs

    slope = (at(1e-2) - at(-1e-2)) / 2e-2
    _, tape = network.forward_policy((x, mask))
    np.testing.assert_allclose(network.jvp(tape, tangent), slope, atol=2e-3)
    pulled = network.vjp(tape, d_outputs, None) @ tangent
    assert pulled == pytest.approx(float((d_outputs * slope).sum()), rel=1e-3, abs=1e-2)
    outputs, tape = network.forward_inputs((x, mask))
    np.testing.assert_array_equal(outputs, network.act((x, mask)))
    direction = rng.standard_normal(x.shape).astype(np.float32)
    there, back = (network.act((x + step * direction, mask)).astype(np.float64) for step in (1e-2, -1e-2))
    moved = float((network.vjp_inputs(tape, d_outputs) * direction).sum())
    assert moved == pytest.approx(float((d_outputs * (there - back) / 2e-2).sum()), rel=1e-3, abs=1e-2)


masks = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5)
logits = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=200, deadline=None)
@given(masks, st.data())
def test_masked_choices_have_no_probability_and_finite_derivatives(rows, data) -> None:
    mask = np.array(rows)
    mask[:, 0] |= ~mask[:, :3].any(axis=1)
    mask[:, 3] |= ~mask[:, 3:].any(axis=1)
    family, shape = Categorical(3, 2), mask.shape
    now, old = (
        np.where(
            mask,
            np.array(data.draw(st.lists(logits, min_size=mask.size, max_size=mask.size)), np.float32).reshape(shape),
            LEAST,
        )
        for _ in range(2)
    )
    actions = family.sample(old, family.noise(np.random.default_rng(0), len(mask)))
    for taken in (actions, family.mode(now)):
        assert mask.reshape(-1, 2, 3)[np.arange(len(mask))[:, None], [0, 1], taken].all()
    e = family.evaluate(now, actions, old)
    p = e.saved[1]
    assert (p.T.reshape(shape)[~mask] == 0).all()
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-5)
    assert np.isfinite(e.log_prob).all()
    assert np.isfinite(e.entropy).all()
    assert np.isfinite(e.kl).all()
    assert (e.entropy >= 0).all()
    gradient = family.gradient(e, 1.0, 0.5, 0.2)
    product = family.fisher(now, np.ones_like(now))
    for derivative in (gradient, product):
        assert np.isfinite(derivative).all()
        assert (derivative[~mask] == 0).all()


def test_a_mask_of_composite_actions_reaches_its_own_outputs() -> None:
    policy = policy_for(spaces.Dict(c=spaces.MultiBinary(4), b=spaces.MultiBinary(5)), HYBRID)
    assert policy.distribution.num_inputs == 4 + 5 + 4
    obs = {"observations": np.zeros(3), "action_mask": {"c": [0, 0, 1, 0], "b": [0, 1, 1, 0, 0]}}
    for _ in range(50):
        action = policy.compute_single_action(obs)
        assert HYBRID.contains(action)
        assert (action["b"].tolist(), action["c"]) == ([1, 0], 2)
    assert policy.compute_single_action(obs, explore=False)["c"] == 2


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_mask_is_no_input_and_not_filtered(framework) -> None:
    policy = policy_for(
        spaces.MultiBinary(4), spaces.Discrete(4), framework=framework, observation_filter="MeanStdFilter"
    )
    assert len(policy.encoder.measured) == 3
    assert isinstance(policy.network, MaskedNetwork)
    plain = build_policy(BOX, spaces.Discrete(4), PPOConfig(framework=framework))
    np.testing.assert_array_equal(policy.network.params, plain.network.params)
    assert policy.model.summary() == plain.model.summary()


@pytest.mark.parametrize("explore", [True, False])
def test_acting_knows_the_mask(explore) -> None:
    policy = policy_for(spaces.MultiBinary(4), spaces.Discrete(4, start=10))
    for allowed in range(4):
        mask = np.arange(4) == allowed
        obs = {"observations": np.ones(3), "action_mask": mask}
        assert policy.compute_single_action(obs, explore=explore) == 10 + allowed
    with pytest.raises(ValueError, match="action_mask allows no action"):
        policy.compute_single_action({"observations": np.ones(3), "action_mask": np.zeros(4)}, explore=explore)


def test_chance_takes_the_allowed_actions_alike() -> None:
    greedy = EpsilonGreedy(5, EpsilonGreedyConfig(), 1, masked=True)
    greedy.epsilon = 0.6
    count = 20_000
    values = np.tile(np.array([5, LEAST, 1, LEAST, 3], np.float32), (count, 1))
    actions = greedy.sample(values, greedy.noise(np.random.default_rng(0), count))
    shares = np.bincount(actions[:, 0], minlength=5) / count
    assert shares == pytest.approx([0.6, 0, 0.2, 0, 0.2], abs=0.015)
    lone = np.where(np.eye(5, dtype=bool), np.float32(-3), LEAST)
    for noise in (-1, 0, 0.5, 1 - 2**-24):
        assert greedy.sample(lone, np.full((5, 1), noise, np.float32))[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_policy_of_values_knows_the_mask() -> None:
    space = spaces.Dict(observations=BOX, action_mask=spaces.MultiBinary(4))
    policy = build_policy(space, spaces.Discrete(4), DQNConfig())
    obs = {"observations": np.ones(3), "action_mask": [0, 1, 1, 0]}
    assert {policy.compute_single_action(obs) for _ in range(60)} == {1, 2}


@pytest.mark.parametrize(("temperature", "wanted"), [(1e-9, 0), (2, 0.27), (1e30, 0.5)])
def test_softq_draws_among_the_allowed_actions_at_any_temperature(temperature, wanted) -> None:
    soft, count = SoftQ(5, temperature), 20_000
    values = np.tile(np.array([-3, LEAST, -5, LEAST, LEAST], np.float32), (count, 1))
    actions = soft.sample(values, soft.noise(np.random.default_rng(0), count))
    shares = np.bincount(actions[:, 0], minlength=5) / count
    assert shares == pytest.approx([1 - wanted, 0, wanted, 0, 0], abs=0.015)
