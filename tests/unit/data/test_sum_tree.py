"""The sum tree against a running sum over all weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.sum_tree import FANOUT, SumTree

SIZES = st.one_of(st.integers(1, 200), st.integers(FANOUT**2 - 2, FANOUT**2 + 2))


@settings(deadline=None, max_examples=60)
@given(SIZES, st.integers(0, 2**32 - 1), st.lists(st.integers(0, 50), max_size=5))
def test_the_leaf_is_where_the_running_sum_passes_the_mass(size: int, seed: int, changes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    tree, weights = SumTree(size), np.zeros(size)
    for count in [size, *changes]:
        places = rng.integers(0, size, count)
        new = rng.integers(0, 4, count).astype(np.float64)  # whole numbers: sums are exact
        tree.put(places, new)
        for place, weight in zip(places, new, strict=True):
            weights[place] = weight
    np.testing.assert_array_equal(tree.leaves, weights)
    assert tree.total == weights.sum()
    if not weights.sum():
        return
    masses = rng.random(40) * weights.sum()
    expected = [int(np.flatnonzero(np.cumsum(weights) > mass)[0]) for mass in masses]
    np.testing.assert_array_equal(tree.find(masses), expected)


@settings(deadline=None, max_examples=60)
@given(SIZES, st.integers(0, 2**32 - 1))
def test_a_leaf_of_weight_zero_is_never_found(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random(size) ** 20 * (rng.random(size) < 0.3)
    weights[rng.integers(size)] = 1e-3
    tree = SumTree(size)
    tree.put(np.arange(size), weights)
    edges = np.concatenate([[0.0], np.cumsum(weights), [tree.total, tree.total * (1 + 1e-12)]])
    assert (weights[tree.find(edges)] > 0).all()


def test_every_node_follows_from_the_leaves_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    tree, again = SumTree(5000), SumTree(5000)
    for count in (1, 2, 7, 64, 300, 5000, 3):
        tree.put(rng.integers(0, 5000, count), rng.random(count))
    again.put(np.arange(5000), tree.leaves)
    assert tree.total == again.total
    masses = rng.random(1000) * tree.total
    np.testing.assert_array_equal(tree.find(masses), again.find(masses))


def test_draws_follow_the_weights() -> None:
    tree = SumTree(300)
    tree.put(np.array([5, 70, 299]), np.array([1.0, 2.0, 5.0]))
    found = tree.find((np.arange(8000) + 0.5) * (tree.total / 8000))
    assert [np.count_nonzero(found == place) for place in (5, 70, 299)] == pytest.approx([1000, 2000, 5000], abs=1)
