"""The scale of rewards against brute-force sums, in one piece, in fragments and shared between learners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.data.batch import Batch
from shoal.data.reward_scale import RewardScale

GAMMA = 0.9
T, N = 40, 4


def batch_of(steps: int = T, num_envs: int = N, seed: int = 0, rewards: NDArray[Any] | None = None) -> Batch:
    """Rewards with episodes of several steps, both kinds of ends, and some rows that are no transitions."""
    rng = np.random.default_rng(seed)
    shape = (steps, num_envs)
    given = rng.normal(1, 3, shape) if rewards is None else np.broadcast_to(rewards, shape)
    ends, kinds = rng.random(shape) < 0.15, rng.random(shape) < 0.5
    valid = rng.random(shape) > 0.05
    nothing = np.zeros(shape, np.float32)
    return Batch(
        obs=(),
        actions=nothing[..., None],
        rewards=np.where(valid, given, 1e6).astype(np.float32),
        terminated=(ends & kinds) | ~valid,
        truncated=ends & ~kinds & valid,
        valid=valid,
        log_probs=nothing,
        dist_inputs=nothing[..., None],
        final_obs=(),
        final_at=np.zeros((0, 2), np.int64),
    )


def rows(batch: Batch, begin: int, end: int) -> Batch:
    """A stretch of time."""
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs")
    return replace(batch, **{name: getattr(batch, name)[begin:end] for name in names})


def share(batch: Batch, columns: list[int]) -> Batch:
    """What a learner has of a batch."""
    names = ("actions", "rewards", "terminated", "truncated", "valid", "log_probs", "dist_inputs")
    parts = {name: getattr(batch, name)[:, columns] for name in names}
    return replace(batch, columns=np.array(columns, np.int64), **parts)


def sums_of(batch: Batch) -> list[float]:
    """The discounted sum of each episode's rewards up to every step, by its definition."""
    found = []
    for n in range(batch.rewards.shape[1]):
        begin = 0
        for t in range(len(batch.rewards)):
            if batch.valid[t, n]:
                found.append(sum(GAMMA ** (t - k) * float(batch.rewards[k, n]) for k in range(begin, t + 1)))
            if batch.terminated[t, n] or batch.truncated[t, n]:
                begin = t + 1
    return found


def scale_of(*batches: Batch) -> RewardScale:
    scale = RewardScale(GAMMA)
    for batch in batches:
        scale.update(batch, batch.rewards)
    return scale


def test_it_is_the_standard_deviation_of_the_discounted_returns() -> None:
    batch = batch_of()
    sums = sums_of(batch)
    scale = scale_of(batch)
    assert (scale.count, scale.mean) == (len(sums), pytest.approx(np.mean(sums)))
    assert scale.divisor == pytest.approx(np.std(sums))


@pytest.mark.parametrize("cuts", [[20], [1, 2, 3, 30], list(range(1, T))])
def test_fragments_carry_unfinished_episodes_on(cuts: list[int]) -> None:
    batch = batch_of()
    parts = [rows(batch, begin, end) for begin, end in zip([0, *cuts], [*cuts, T], strict=True)]
    whole, cut = scale_of(batch), scale_of(*parts)
    assert cut.divisor == pytest.approx(whole.divisor)
    np.testing.assert_allclose(cut.unfinished, whole.unfinished)


def test_what_is_saved_goes_on_to_the_bit() -> None:
    first, second = batch_of(seed=1), batch_of(seed=2)
    straight, saved = scale_of(first, second), scale_of(first)
    resumed = RewardScale(GAMMA)
    resumed.set_state(saved.get_state())
    resumed.update(second, second.rewards)
    assert (resumed.divisor, resumed.mean) == (straight.divisor, straight.mean)
    np.testing.assert_array_equal(resumed.unfinished, straight.unfinished)


def shared_between(*shares: Batch) -> list[RewardScale]:
    """The scales of learners that update at once, each from its share."""
    parts: list[Any] = [None] * len(shares)
    barrier = Barrier(len(shares))

    def total(rank: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        def add_up(x: NDArray[np.float64]) -> NDArray[np.float64]:
            parts[rank] = x
            barrier.wait(60)
            whole: NDArray[np.float64] = np.sum(parts, axis=0)
            barrier.wait(60)
            return whole

        return add_up

    scales = [RewardScale(GAMMA) for _ in shares]
    for begin, end in ((0, 15), (15, T)):
        threads = []
        for rank, (scale, batch) in enumerate(zip(scales, shares, strict=True)):
            part = rows(batch, begin, end)
            threads.append(Thread(target=scale.update, args=(part, part.rewards, total(rank))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return scales


@pytest.mark.parametrize("columns", [([0, 1], [2, 3]), ([1, 3], [0, 2]), ([0, 1, 2, 3], [])])
def test_learners_that_share_a_batch_have_the_same_scale(columns: tuple[list[int], list[int]]) -> None:
    batch = batch_of()
    alone = scale_of(rows(batch, 0, 15), rows(batch, 15, T))
    one, other = shared_between(*(share(batch, each) for each in columns))
    assert one.divisor == other.divisor == pytest.approx(alone.divisor)
    for scale in (one, other):
        np.testing.assert_allclose(scale.unfinished, alone.unfinished)


def test_the_unit_of_rewards_does_not_matter() -> None:
    batch = batch_of()
    for unit in (1e-6, 1e-3, 1e5):
        scale = RewardScale(GAMMA)
        scale.update(batch, batch.rewards.astype(np.float64) * unit)
        assert scale.divisor == pytest.approx(scale_of(batch).divisor * unit)


def test_rewards_that_hardly_differ_are_not_blown_up() -> None:
    assert scale_of(batch_of(rewards=np.zeros((1, 1)))).divisor == 1
    assert RewardScale(GAMMA).divisor == 1
    alike = batch_of(rewards=np.array([[5.0]]))
    alike = replace(alike, terminated=np.ones_like(alike.terminated))  # episodes of one step
    assert scale_of(alike).divisor == pytest.approx(0.5)


def test_another_number_of_environments_begins_anew() -> None:
    scale = scale_of(batch_of(), batch_of(num_envs=2, seed=3))
    assert scale.unfinished.shape == (2,)
    assert scale.count == np.count_nonzero(batch_of().valid) + np.count_nonzero(batch_of(num_envs=2, seed=3).valid)


def test_fragments_of_some_environments_are_seen_as_the_whole_is() -> None:
    """Workers of different pace: the sums of each environment go on where its own last fragment ended."""
    batch = batch_of()
    whole, parts = RewardScale(GAMMA), RewardScale(GAMMA)
    whole.update(batch, batch.rewards)
    for columns, cuts in (([0, 1], (0, 10, 20, 40)), ([2, 3], (0, 40))):
        for begin, end in pairwise(cuts):
            fragment = share(rows(batch, begin, end), columns)
            parts.update_part(replace(fragment, columns=np.array(columns)), fragment.rewards, N)
    assert parts.divisor == pytest.approx(whole.divisor)
    np.testing.assert_allclose(parts.unfinished, whole.unfinished)
