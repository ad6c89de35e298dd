from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.filters import MeanStdFilter
from shoal.data.state import State

ALL = np.ones(3, bool)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(-1e4, 1e4), st.floats(1e-2, 1e3), st.integers())
def test_learning_in_pieces_is_learning_at_once(sizes, centre, width, seed) -> None:
    rng = np.random.default_rng(abs(seed))
    rows = (centre + width * rng.standard_normal((sum(sizes), 3))).astype(np.float32)
    whole, pieces = MeanStdFilter(ALL), MeanStdFilter(ALL)
    whole.update(rows)
    for piece in np.split(rows, np.cumsum(sizes)[:-1]):
        pieces.update(piece)
    assert pieces.count == whole.count == len(rows)
    np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(pieces.m2, whole.m2, rtol=1e-7, atol=1e-7)
    if len(rows) > 1:
        np.testing.assert_allclose(whole.mean, rows.astype(np.float64).mean(axis=0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(whole.m2 / (len(rows) - 1), rows.astype(np.float64).var(axis=0, ddof=1), rtol=1e-6)


def test_what_was_seen_comes_out_standardised() -> None:
    rows = (50 + 7 * np.random.default_rng(0).standard_normal((1000, 3))).astype(np.float32)
    mine = MeanStdFilter(ALL)
    mine.update(rows)
    out = mine(rows)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(out.std(axis=0, ddof=1), 1, atol=1e-4)


def test_a_fresh_filter_only_clips() -> None:
    mine = MeanStdFilter(ALL)
    assert mine(np.array([[1, -2, 1000]], np.float32)).tolist() == [[1, -2, 10]]


def test_outliers_are_cut_at_ten_sigmas() -> None:
    mine = MeanStdFilter(ALL)
    mine.update(np.random.default_rng(0).standard_normal((1000, 3)).astype(np.float32))
    assert mine(np.array([[1e6, -1e6, np.float32(3e38)]], np.float32)).tolist() == [[10, -10, 10]]


def test_a_column_that_never_moved_does_not_explode_when_it_does() -> None:
    mine = MeanStdFilter(ALL)
    rows = np.zeros((100, 3), np.float32)
    rows[:, 0], rows[:, 1] = 5, np.arange(100)
    mine.update(rows)
    assert np.isfinite(mine(rows)).all()
    assert mine(np.array([[5, 0, 0]], np.float32))[0, 0] == 0
    assert mine(np.array([[5.5, 0, 0]], np.float32))[0, 0] == 0.5


def test_columns_that_are_not_measured_pass_unchanged() -> None:
    mine = MeanStdFilter(np.array([True, False, False]))
    mine.update(np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32) + 9)
    x = np.array([[9, 123456, -99]], np.float32)
    assert mine(x)[0, 1:].tolist() == [123456, -99]
    assert mine(x)[0, 0] != 9


def test_the_input_is_left_alone() -> None:
    mine = MeanStdFilter(ALL)
    mine.update(np.arange(12, dtype=np.float32).reshape(4, 3))
    x = np.ones((2, 3), np.float32)
    mine(x)
    assert (x == 1).all()


def test_nothing_seen_changes_nothing() -> None:
    mine = MeanStdFilter(ALL)
    mine.update(np.zeros((0, 3), np.float32))
    assert mine.count == 0


def test_state_goes_through_json_and_back() -> None:
    first, second = MeanStdFilter(ALL), MeanStdFilter(ALL)
    rows = np.random.default_rng(1).standard_normal((77, 3)).astype(np.float32)
    first.update(rows)
    state = first.get_state()
    second.set_state(State(json.loads(json.dumps(state.values)), state.arrays))
    np.testing.assert_array_equal(first(rows), second(rows))
    first.update(rows)
    second.update(rows)
    np.testing.assert_array_equal(first.m2, second.m2)
    assert state.values["count"] == 77, "a state must not move with the filter it came from"
