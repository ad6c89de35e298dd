"""What is held out: which transitions, for how long, and what overfitting is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.algorithms.held_out import EVERY, FEWEST, MOST, HeldOut
from shoal.data.replay import Replay, Transitions
from shoal.data.state import State


def numbered(begin: int, count: int) -> Transitions:
    """Transitions whose return is their number."""
    numbers = np.arange(begin, begin + count, dtype=np.float32)
    obs = (np.stack([numbers, -numbers], axis=1),)
    return Transitions(obs, numbers.astype(np.int32), numbers, (obs[0] + 1,), np.full(count, 0.9, np.float32))


def replay_of(capacity: int = 10_000) -> Replay:
    return Replay([(2,)], [np.dtype(np.float32)], capacity, 2000, None, np.random.default_rng(0))


def test_one_in_eight_is_held_out_and_given_back_when_newer_ones_come() -> None:
    held, given = HeldOut(), []
    for begin in range(0, 6000, 5):
        part = held.split(numbered(begin, 5))
        np.testing.assert_array_equal(part.obs[0][:, 0], part.returns)
        np.testing.assert_array_equal(part.next_obs[0][:, 1], 1 - part.returns)
        given += part.actions.tolist()
    assert held.transitions is not None
    kept = held.transitions.actions.tolist()
    assert len(held) == MOST
    assert kept == list(range(6000 - MOST * EVERY + EVERY - 1, 6000, EVERY)), "the newest of each eight"
    assert sorted([*given, *kept]) == list(range(6000)), "nothing is lost and nothing is there twice"


@pytest.mark.parametrize("worse", [0.9, 1.4])
def test_overfitting_is_a_larger_error_on_what_was_held_out(worse: float) -> None:
    held, replay = HeldOut(), replay_of()
    asked: list[np.ndarray] = []

    def errors_of(transitions: Transitions) -> np.ndarray:
        asked.append(transitions.returns)
        is_held = transitions.actions % EVERY == EVERY - 1
        return np.where(is_held, worse, 1.0).astype(np.float32)

    replay.add(held.split(numbered(0, 8 * FEWEST)))
    assert held.measure(replay, errors_of) == held.ratio == pytest.approx(worse)
    learned, left_out = asked
    assert not set(learned) & set(left_out)


@pytest.mark.parametrize("count", [FEWEST, MOST])
def test_what_chance_explains_is_no_overfitting(count: int) -> None:
    """Errors of the same distribution are hardly ever told apart, whatever their ratio happens to be."""
    held, replay = HeldOut(), replay_of()
    replay.add(held.split(numbered(0, EVERY * count)))
    rng = np.random.default_rng(0)
    ratios, leasts = [], []
    for _ in range(400):
        held.measure(replay, lambda transitions: rng.exponential(size=len(transitions.returns)).astype(np.float32))
        ratios.append(held.ratio)
        leasts.append(held.least)
    assert np.mean(np.array(leasts) > 1.25) < 0.01
    if count == FEWEST:
        assert np.mean(np.array(ratios) > 1.25) > 0.05, "by the ratio alone, chance would stop the learner"
    held.measure(replay, lambda transitions: 1 + (transitions.actions % EVERY == EVERY - 1).astype(np.float32))
    assert held.least == held.ratio == 2, "errors that are all alike leave nothing to chance"


def test_few_transitions_tell_nothing() -> None:
    held, replay = HeldOut(), replay_of()
    replay.add(held.split(numbered(0, EVERY * (FEWEST - 1))))
    assert held.can_tell is False
    replay.add(held.split(numbered(0, EVERY)))
    assert held.can_tell is True


def test_the_learned_ones_are_of_the_same_time() -> None:
    held, replay = HeldOut(), replay_of()
    replay.add(held.split(numbered(0, 1000)))
    for begin in range(1000, 6000, 1000):
        replay.add(held.split(numbered(begin, 1000)))
    seen: list[Transitions] = []
    held.measure(replay, lambda transitions: seen.append(transitions) or transitions.returns)
    learned, left_out = seen
    assert len(learned.returns) == len(left_out.returns) == MOST
    newest = set(range(6000 - MOST * EVERY, 6000))
    assert np.mean([number in newest for number in learned.actions.tolist()]) > 0.8  # beside some that were given back


def test_what_is_held_out_is_saved() -> None:
    held = HeldOut()
    held.split(numbered(0, 100))
    state = held.get_state()
    loaded = HeldOut()
    loaded.set_state(State(json.loads(json.dumps(state.values)), dict(state.arrays)))
    one, two = held.split(numbered(100, 3000)), loaded.split(numbered(100, 3000))
    np.testing.assert_array_equal(one.returns, two.returns)
    assert len(loaded) == len(held)
    empty = HeldOut()
    empty.set_state(HeldOut().get_state())
    assert len(empty) == 0
