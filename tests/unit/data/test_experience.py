"""Returns of recorded steps against the sums that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.experience import Experience, returns_to_go
from shoal.data.filters import MeanStdFilter

GAMMA = 0.9


def experience(lengths: list[int], goes_on: list[bool], rewards: np.ndarray) -> Experience:
    """Episodes of these lengths, of which some went on after their last step."""
    total = sum(lengths)
    ends = np.cumsum(lengths)
    terminated = np.zeros(total, bool)
    terminated[ends - 1] = ~np.array(goes_on)
    finals = np.full(len(lengths), -1)
    finals[goes_on] = np.arange(sum(goes_on))
    obs = (np.zeros((total, 1), np.float32),)
    final_obs = (np.zeros((sum(goes_on), 1), np.float32),)
    return Experience(obs, np.zeros((total, 1)), rewards, terminated, ends - lengths, final_obs, finals)


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5), st.integers(0, 99))
def test_returns_are_discounted_sums_and_what_followed(episodes: list[tuple[int, bool]], seed: int) -> None:
    lengths, goes_on = [length for length, _ in episodes], [more for _, more in episodes]
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=sum(lengths)).astype(np.float32)
    values = rng.normal(size=max(sum(goes_on), 1)).astype(np.float32)
    steps = experience(lengths, goes_on, rewards)
    found = returns_to_go(steps, rewards, GAMMA)
    returns = found.partial + found.discounts * values[found.finals]
    assert steps.lengths.tolist() == lengths
    row = 0
    for number, length in enumerate(lengths):
        for t in range(length):
            left = rewards[row + t : row + length]
            wanted = sum(GAMMA**k * reward for k, reward in enumerate(left))
            if goes_on[number]:
                wanted += GAMMA ** len(left) * values[steps.final_of[number]]
            assert returns[row + t] == pytest.approx(wanted, abs=1e-4)
        row += length


@pytest.mark.parametrize("scaler", ["StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"])
def test_a_filter_is_fitted_as_the_scaler_of_its_name(scaler: str) -> None:
    x = np.random.default_rng(1).normal(3, 2, (50, 3)).astype(np.float32)
    x[:, 2] = 4.0  # a number that never moved
    fitted = MeanStdFilter(np.ones(3, bool))
    fitted.fit(x, scaler)
    moved = {
        "StandardScaler": (x - x.mean(axis=0)) / x.std(axis=0).clip(1e-12),
        "MinMaxScaler": (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0)).clip(1e-12),
        "MaxAbsScaler": x / np.abs(x).max(axis=0),
        "RobustScaler": (x - np.median(x, axis=0)) / np.subtract(*np.quantile(x, [0.75, 0.25], axis=0)).clip(1e-12),
    }[scaler]
    np.testing.assert_allclose(fitted(x), moved, atol=1e-5)
    again = MeanStdFilter(np.ones(3, bool))
    again.set_state(fitted.get_state())
    np.testing.assert_array_equal(again(x), fitted(x))
