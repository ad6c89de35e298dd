"""Which learner takes whose experience."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.parallel.ray_learners import is_lost_neighbour, nodes_for, shared_out

nodes = st.sampled_from("abc")


@pytest.mark.parametrize(
    ("workers", "learners", "wanted"),
    [
        ({1: "a", 2: "a", 3: "b", 4: "b"}, ["a", "b"], [[1, 2], [3, 4]]),
        ({1: "a", 2: "b", 3: "a", 4: "b"}, ["a", "b"], [[1, 3], [2, 4]]),
        ({1: "a", 2: "a", 3: "a", 4: "a"}, ["a", "a"], [[1, 2], [3, 4]]),
        ({1: "a", 2: "b", 3: "c"}, ["a", "b"], [[1, 3], [2]]),
        ({2: "b"}, ["a", "b"], [[], [2]]),
    ],
)
def test_learners_take_what_is_near(workers, learners, wanted) -> None:
    assert shared_out(workers, learners) == wanted


@given(st.dictionaries(st.integers(1, 20), nodes), st.lists(nodes, min_size=1, max_size=5))
def test_every_fragment_is_taken_once(workers, learners) -> None:
    assert sorted(index for share in shared_out(workers, learners) for index in share) == sorted(workers)


@pytest.mark.parametrize(
    ("workers", "count", "wanted"),
    [
        (["a", "a", "b"], 2, ["a", "b"]),
        (["b", "a", "a"], 1, ["a"]),
        (["a", "b"], 4, ["a", "a", "b", "b"]),
        (["a", "a"], 2, ["a", "a"]),
    ],
)
def test_learners_sit_where_the_workers_are(workers, count, wanted) -> None:
    assert nodes_for(workers, count) == wanted


def test_only_a_broken_sum_is_an_echo() -> None:
    assert is_lost_neighbour(ConnectionError("a learner has closed its connection"))
    assert is_lost_neighbour(ConnectionResetError(104, "Connection reset by peer"))
    assert is_lost_neighbour(RuntimeError("NCCL error: remote process exited or there was a network error"))
    assert not is_lost_neighbour(ValueError("the model's output has 3 columns"))
    assert not is_lost_neighbour(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
