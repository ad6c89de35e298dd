"""Replay against a plain list of transitions, and what its state promises."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.batch import Batch
from shoal.data.replay import Priorities, Replay, Transitions, bytes_per_transition, transitions_of
from shoal.data.state import State

SHAPES, DTYPES = ((2,), (3, 3)), (np.dtype(np.float32), np.dtype(np.uint8))
PRIORITIES = Priorities(0.6, 0.4, 1e-6)


def replay_of(capacity: int, slack: int, priorities: Priorities | None = None, seed: int = 0) -> Replay:
    return Replay(SHAPES, DTYPES, capacity, slack, priorities, np.random.default_rng(seed))


def numbered(begin: int, end: int) -> Transitions:
    """Transitions that can be told apart by every part of them."""
    number = np.arange(begin, end)
    return Transitions(
        (np.stack([number, -number], axis=1).astype(np.float32), np.tile((number % 251)[:, None, None], (1, 3, 3))),
        number.astype(np.int32),
        number.astype(np.float32) / 8,
        (np.stack([number + 1, number], axis=1).astype(np.float32), np.tile((number % 7)[:, None, None], (1, 3, 3))),
        number.astype(np.float32) / 4,
    )


def copied(state: State) -> State:
    return State(json.loads(json.dumps(state.values)), {name: array.copy() for name, array in state.arrays.items()})


def assert_equal(one: State, two: State) -> None:
    assert one.values == two.values
    assert one.arrays.keys() == two.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name], err_msg=name)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 40), st.integers(1, 12), st.lists(st.floats(0, 1), max_size=30), st.sampled_from([None, PRIORITIES])
)
def test_the_newest_are_drawn_and_whole(
    capacity: int, slack: int, shares: list[float], priorities: Priorities | None
) -> None:
    replay, added = replay_of(capacity, slack, priorities), 0
    for share in [1.0, *shares]:
        count = round(share * slack)
        replay.add(numbered(added, added + count))
        added += count
        assert len(replay) == min(added, capacity)
        drawn = replay.draw(3, 50)
        numbers = drawn.transitions.actions.astype(np.int64)
        assert numbers.min() >= added - len(replay)
        assert numbers.max() < added
        for mine, theirs in zip(_arrays(drawn.transitions), _arrays(numbered(0, added)), strict=True):
            np.testing.assert_array_equal(mine, theirs[numbers])
        replay.learned(drawn.places, drawn.transitions.returns)


def _arrays(t: Transitions) -> list[np.ndarray]:
    return [*t.obs, t.actions, t.returns, *t.next_obs, t.discounts]


def test_all_that_is_remembered_is_drawn_alike() -> None:
    replay = replay_of(10, 5)
    for begin in range(0, 35, 5):
        replay.add(numbered(begin, begin + 5))
    counts = np.bincount(replay.draw(100, 100).transitions.actions, minlength=35)
    assert counts[:25].sum() == 0
    assert counts[25:] == pytest.approx(np.full(10, 1000), abs=150)


def test_priorities_decide_how_often_and_weights_make_up_for_it() -> None:
    replay = replay_of(4, 4, Priorities(alpha=1.0, beta=1.0, eps=1e-9))
    replay.add(numbered(0, 4))
    replay.learned(np.arange(4), np.float32([0.5, -1, 2, 4.5]))
    drawn = replay.draw(1, 8000)
    counts = np.bincount(drawn.transitions.actions)
    assert counts == pytest.approx([500, 1000, 2000, 4500], abs=2)
    assert drawn.weights is not None
    weights = np.array([drawn.weights[drawn.transitions.actions == k][0] for k in range(4)])
    assert weights == pytest.approx([1, 0.5, 0.25, 1 / 9])
    assert weights * counts == pytest.approx(np.full(4, 500), abs=2)  # in full
    replay.add(numbered(4, 5))  # as surprising as the most surprising so far
    counts = np.bincount(replay.draw(1, 12000).transitions.actions, minlength=5)
    assert counts == pytest.approx([0, 1000, 2000, 4500, 4500], abs=2)


def test_each_minibatch_spans_all_priorities() -> None:
    replay = replay_of(100, 100, PRIORITIES)
    replay.add(numbered(0, 100))
    drawn = replay.draw(4, 25).transitions.actions.reshape(4, 25)
    for minibatch in drawn:
        assert minibatch.min() < 8
        assert minibatch.max() >= 92


@pytest.mark.parametrize("priorities", [None, PRIORITIES])
@pytest.mark.parametrize("added", [0, 3, 20, 33, 50])
def test_a_state_stays_what_it_was_while_slack_more_is_added(priorities: Priorities | None, added: int) -> None:
    replay = replay_of(20, 6, priorities)
    for begin in range(0, added, 5):
        replay.add(numbered(begin, min(begin + 5, added)))
    state = replay.get_state()
    then = copied(state)
    replay.add(numbered(added, added + 4))
    replay.learned(replay.draw(2, 3).places, np.ones(6, np.float32))
    replay.add(numbered(added + 4, added + 6))
    assert_equal(state, then)
    assert any(array.base is not None for array in state.arrays.values()) == (added > 0), "views, not copies"


@pytest.mark.parametrize("priorities", [None, PRIORITIES])
@pytest.mark.parametrize("added", [0, 3, 20, 33, 50])
def test_a_restored_replay_goes_on_bit_for_bit(priorities: Priorities | None, added: int) -> None:
    one, two = replay_of(20, 6, priorities), replay_of(20, 6, priorities, seed=9)
    for begin in range(0, added, 5):
        one.add(numbered(begin, min(begin + 5, added)))
        one.learned(one.draw(1, 4).places, np.float32([0.1, 2, 0.7, 0.3]))
    two.add(numbered(100, 106))
    two.set_state(copied(one.get_state()))
    for begin in range(added, added + 60, 6):
        for replay in (one, two):
            replay.add(numbered(begin, begin + 6))
        first, second = one.draw(2, 5), two.draw(2, 5)
        np.testing.assert_array_equal(first.places, second.places)
        for replay in (one, two):
            replay.learned(first.places, np.linspace(0, 1, 10, dtype=np.float32))
    assert_equal(one.get_state(), two.get_state())


@pytest.mark.parametrize("capacity", [5, 40])
def test_a_replay_of_another_size_takes_the_newest(capacity: int) -> None:
    saved, replay = replay_of(20, 6, PRIORITIES), replay_of(capacity, 6, PRIORITIES)
    for begin in range(0, 50, 5):
        saved.add(numbered(begin, begin + 5))
    replay.set_state(copied(saved.get_state()))
    assert len(replay) == min(capacity, 20)
    drawn = replay.draw(20, 20).transitions
    assert drawn.actions.min() >= 50 - len(replay)
    np.testing.assert_array_equal(drawn.obs[0][:, 0], drawn.actions)
    replay.add(numbered(50, 56))
    assert 55 in replay.draw(20, 20).transitions.actions


def test_a_state_holds_only_what_is_filled() -> None:
    replay = replay_of(10_000, 100)
    replay.add(numbered(0, 7))
    assert sum(array.nbytes for array in replay.get_state().arrays.values()) == 7 * (2 * (8 + 9) + 12)
    assert bytes_per_transition(SHAPES, DTYPES, prioritized=False) == 2 * (8 + 9) + 12
    assert bytes_per_transition(SHAPES, DTYPES, prioritized=True) == 2 * (8 + 9) + 20


def test_rows_that_are_no_transitions_are_left_out() -> None:
    steps, envs = 4, 2
    valid = np.array([[1, 1], [0, 1], [1, 1], [1, 0]], bool)
    terminated = ~valid
    truncated = np.array([[1, 0], [0, 0], [0, 1], [0, 0]], bool)
    obs = np.arange(steps * envs, dtype=np.float32).reshape(steps, envs, 1)
    batch = Batch(
        obs=(obs,),
        actions=np.arange(steps * envs).reshape(steps, envs, 1),
        rewards=np.ones((steps, envs), np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        log_probs=np.zeros((steps, envs), np.float32),
        dist_inputs=np.zeros((steps, envs, 0), np.float32),
        final_obs=(np.float32([[100], [101], [102]]),),
        final_at=np.array([[0, 0], [2, 1], [3, 0]]),
    )
    found = transitions_of(batch, batch.rewards, 0.5, 2)
    assert found.actions.tolist() == [0, 1, 3, 4, 5, 6]
    assert found.obs[0][:, 0].tolist() == [0, 1, 3, 4, 5, 6]
    assert found.returns.tolist() == [1, 1.5, 1.5, 1.5, 1, 1]
    assert found.discounts.tolist() == [0.5, 0.25, 0.25, 0.25, 0.5, 0.5]
    assert found.next_obs[0][:, 0].tolist() == [100, 5, 101, 102, 101, 102]
