from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.data.returns import gae, multistep, scheduled, successor_values, vtrace

LONGEST, WIDEST = 12, 4
numbers = st.floats(-10, 10, width=32)


@st.composite
def fragments(draw):
    shape = (draw(st.integers(1, LONGEST)), draw(st.integers(1, WIDEST)))
    arrays = [draw(hnp.arrays(np.float32, shape, elements=numbers)) for _ in range(3)]
    terminated = draw(hnp.arrays(bool, shape))
    truncated = draw(hnp.arrays(bool, shape)) & ~terminated
    return (*arrays, terminated, truncated)


def advantage_by_hand(rewards, values, next_values, terminated, truncated, gamma, lambda_, t):
    """The sum of discounted one-step errors up to the end of the episode, in double precision."""
    total, weight = 0.0, 1.0
    for k in range(t, len(rewards)):
        bootstrap = 0.0 if terminated[k] else gamma * float(next_values[k])
        total += weight * (float(rewards[k]) + bootstrap - float(values[k]))
        if terminated[k] or truncated[k]:
            break
        weight *= gamma * lambda_
    return total


@settings(max_examples=200, deadline=None)
@given(fragments(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_gae_is_the_sum_of_one_step_errors(fragment, gamma, lambda_) -> None:
    rewards, values, next_values, terminated, truncated = fragment
    got = gae(rewards, values, next_values, terminated, truncated, gamma, lambda_)
    assert got.dtype == np.float32
    for n in range(rewards.shape[1]):
        column = [a[:, n] for a in fragment]
        wanted = [advantage_by_hand(*column, gamma, lambda_, t) for t in range(len(rewards))]
        np.testing.assert_allclose(got[:, n], wanted, rtol=1e-5, atol=2e-4)


def vtrace_by_hand(rewards, values, next_values, terminated, truncated, ratios, gamma, lambda_, clip, t):
    """The sum of equation 1 of Espeholt et al.: errors that are weighted by rho, and by the product of all c before."""
    total, weight = 0.0, 1.0
    for k in range(t, len(rewards)):
        bootstrap = 0.0 if terminated[k] else gamma * float(next_values[k])
        delta = float(rewards[k]) + bootstrap - float(values[k])
        total += weight * min(float(ratios[k]), clip) * delta
        if terminated[k] or truncated[k]:
            break
        weight *= gamma * lambda_ * min(float(ratios[k]), 1)
    return float(values[t]) + total


@settings(max_examples=100, deadline=None)
@given(fragments(), st.integers(0, 99), st.sampled_from([0.0, 0.99]), st.sampled_from([0.0, 0.95]))
def test_vtrace_is_the_sum_of_weighted_errors(fragment, seed, gamma, lambda_) -> None:
    rewards = fragment[0]
    ratios = np.random.default_rng(seed).lognormal(size=rewards.shape).astype(np.float32)
    targets, advantages = vtrace(*fragment, ratios, gamma, lambda_, 1.5)
    assert targets.dtype == advantages.dtype == np.float32
    for n in range(rewards.shape[1]):
        column = [a[:, n] for a in (*fragment, ratios)]
        wanted = [vtrace_by_hand(*column, gamma, lambda_, 1.5, t) for t in range(len(rewards))]
        np.testing.assert_allclose(targets[:, n], wanted, rtol=1e-4, atol=2e-3)


@settings(max_examples=50, deadline=None)
@given(fragments())
def test_vtrace_of_the_policy_that_sampled_is_gae(fragment) -> None:
    targets, advantages = vtrace(*fragment, np.ones_like(fragment[0]), 0.9, 0.95, 1.0)
    wanted = gae(*fragment, 0.9, 0.95)
    np.testing.assert_allclose(advantages, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(targets, wanted + fragment[1], rtol=1e-4, atol=1e-4)


def test_lambda_one_gives_returns_less_values() -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.standard_normal((2, 9, 3)).astype(np.float32)
    terminated = np.zeros((9, 3), bool)
    terminated[-1] = True
    following = np.concatenate([values[1:], np.zeros((1, 3), np.float32)])
    got = gae(rewards, values, following, terminated, np.zeros_like(terminated), 0.9, 1.0)
    returns = sum(0.9**k * rewards[k] for k in range(9))
    np.testing.assert_allclose(got[0], returns - values[0], rtol=1e-5)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    one, no, yes = np.ones((1, 1), np.float32), np.zeros((1, 1), bool), np.ones((1, 1), bool)
    successor = np.full((1, 1), 100, np.float32)
    assert gae(one, 0 * one, successor, yes, no, 0.5, 0.95)[0, 0] == 1
    assert gae(one, 0 * one, successor, no, yes, 0.5, 0.95)[0, 0] == 51


def test_successor_is_the_next_row_or_the_final_observation() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    final_at = np.array([[0, 1], [2, 0], [2, 1]])
    got = successor_values(values, np.array([70, 80, 90], np.float32), final_at)
    assert got.tolist() == [[2, 70], [4, 5], [80, 90]]


def test_successor_of_a_last_step_that_is_not_listed_is_nothing() -> None:
    got = successor_values(np.ones((2, 1), np.float32), np.zeros(0, np.float32), np.zeros((0, 2), np.int64))
    assert got.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("timestep", "wanted"), [(-1, 1.0), (0, 1.0), (50, 0.75), (100, 0.5), (150, 0.25), (200, 0.0), (10**9, 0.0)]
)
def test_schedules_are_linear_between_their_points_and_flat_outside(timestep, wanted) -> None:
    assert scheduled(7.0, [[0, 1.0], [100, 0.5], [200, 0.0]], timestep) == pytest.approx(wanted)


def test_without_a_schedule_the_constant_stays() -> None:
    assert scheduled(7.0, None, 10**9) == 7.0
    assert scheduled(7.0, [[0, 3.0]], 5) == 3.0


@settings(max_examples=200, deadline=None)
@given(fragments(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.integers(1, LONGEST + 2))
def test_multistep_returns_end_where_their_episode_or_fragment_does(fragment, gamma, n_step) -> None:
    rewards, _, _, terminated, truncated = fragment
    steps, envs = rewards.shape
    at = truncated.copy()
    at[-1] |= ~terminated[-1]
    final_at = np.argwhere(at)[::-1]  # in no particular order
    found = multistep(rewards, terminated, truncated, final_at, gamma, n_step)
    places = {tuple(place): steps * envs + f for f, place in enumerate(final_at.tolist())}
    for t in range(steps):
        for n in range(envs):
            total, k = 0.0, t
            while True:
                total += gamma ** (k - t) * float(rewards[k, n])
                if terminated[k, n] or truncated[k, n] or k == steps - 1 or k - t == n_step - 1:
                    break
                k += 1
            assert found.returns[t, n] == pytest.approx(total, rel=1e-4, abs=1e-4)
            assert found.discounts[t, n] == pytest.approx(0 if terminated[k, n] else gamma ** (k - t + 1), rel=1e-5)
            if not terminated[k, n]:
                assert found.successors[t, n] == places.get((k, n), (k + 1) * envs + n)
    assert found.successors.max() < steps * envs + len(final_at)
    assert found.returns.dtype == found.discounts.dtype == np.float32
