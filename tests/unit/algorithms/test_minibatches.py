"""Minibatches: fair permutations, and the same ones however many learners share the batch."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.minibatches import Minibatches
from shoal.parallel.group import Alone


def first_epoch(valid, seed: int = 0, size: int = 10**9, shuffle: bool = True):
    return next(Minibatches(seed, size, shuffle).epochs(valid, Alone()))


masks = st.tuples(st.integers(1, 20), st.integers(1, 7), st.integers(0, 2**32 - 1), st.booleans(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(masks)
def test_an_epoch_is_a_fair_permutation(case) -> None:
    steps, num_envs, seed, shuffle, holes = case
    rng = np.random.default_rng(seed)
    valid = rng.random((steps, num_envs)) < 0.8 if holes else np.ones((steps, num_envs), bool)
    if not valid.any():
        return
    order = first_epoch(valid, seed, shuffle=shuffle).rows
    assert sorted(order.tolist()) == np.flatnonzero(valid.reshape(-1)).tolist()
    if not holes:
        for start in range(0, len(order), num_envs):
            assert sorted(order[start : start + num_envs] % num_envs) == list(range(num_envs))
    if not shuffle:
        assert order.tolist() == sorted(order.tolist())


def test_each_epoch_has_another_order_and_each_environment_its_own() -> None:
    first, second = islice(Minibatches(0, 10**9).epochs(np.ones((50, 3), bool), Alone()), 2)
    assert first.rows.tolist() != second.rows.tolist()
    times = [first.rows[first.rows % 3 == n] // 3 for n in range(3)]
    assert times[0].tolist() != times[1].tolist()
    other = first_epoch(np.ones((50, 3), bool), seed=1)
    assert other.rows.tolist() != first.rows.tolist()


def test_every_step_comes_equally_often_at_every_place() -> None:
    """Over many passes: a permutation that favours some steps would show."""
    passes = 2000
    epochs = islice(Minibatches(3, 10**9).epochs(np.ones((6, 2), bool), Alone()), passes)
    counts = np.zeros((12, 12))
    for epoch in epochs:
        counts[np.arange(12), epoch.rows] += 1
    assert np.abs(counts / passes - 1 / 12).max() < 5 * np.sqrt(1 / 12 / passes)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("columns", [[3, 5], [8, 0], [1, 2, 5]])
def test_the_union_of_the_learners_minibatches_is_that_of_one_learner(in_threads, columns, holes) -> None:
    rng = np.random.default_rng(1)
    valid = rng.random((11, 8)) < 0.7 if holes else np.ones((11, 8), bool)
    numbers = rng.standard_normal((11, 8)).astype(np.float32)
    cuts = np.cumsum([0, *columns])
    shares = [(int(a), valid[:, a:b], numbers[:, a:b]) for a, b in pairwise(cuts)]

    def work(group, share):
        first, mask, mine = share
        found = []
        columns = np.arange(first, first + mask.shape[1])
        for epoch in islice(Minibatches(5, 16).epochs(mask, group, columns), 3):
            normal = epoch.normalized(mine.reshape(-1)[epoch.rows], group)
            for part, size in epoch:
                times, envs = np.divmod(epoch.rows[part], max(mask.shape[1], 1))
                found.append((dict(zip((times * 8 + envs + first).tolist(), normal[part].tolist(), strict=True)), size))
        return found

    [whole] = in_threads(work, [(0, valid, numbers)])
    parts = in_threads(work, shares)
    assert len(whole) == 3 * -(-np.count_nonzero(valid) // 16)
    for k, (wanted, size) in enumerate(whole):
        union: dict = {}
        for found in parts:
            union |= found[k][0]
            assert found[k][1] == size
        assert union.keys() == wanted.keys()
        assert len(wanted) == size
        assert list(union.values()) == pytest.approx([wanted[row] for row in union], abs=1e-5)
        np.testing.assert_allclose([np.mean(list(wanted.values())), np.std(list(wanted.values()))], [0, 1], atol=1e-5)


def test_shares_of_unequal_length_are_filled_up(in_threads) -> None:
    """Complete episodes end at other times on other nodes."""
    shares = [(np.ones((7, 2), bool), [0, 3]), (np.ones((4, 3), bool), [1, 2, 4])]

    def work(group, share):
        epochs = islice(Minibatches(0, 5).epochs(share[0], group, np.array(share[1])), 2)
        return [epoch.rows[part] for epoch in epochs for part, _ in epoch]

    for (mask, _), found in zip(shares, in_threads(work, shares), strict=True):
        rows = np.concatenate(found)
        assert sorted(rows.tolist()) == sorted(2 * list(range(mask.size)))
