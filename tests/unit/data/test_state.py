"""States of parts: the names under which they are stored, and the way back."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.state import State


def nested() -> State:
    moments = State.of(steps=3, m=np.arange(2.0), v=np.arange(3.0))
    learner = State.of(owed=0.5, target=np.ones(2), optimizer=moments)
    workers = {f"worker{k}": State.of(number=k, history=np.full(2, k)) for k in range(11)}
    return State.of("/", iteration=7, learner=learner, **workers)


def test_names_in_checkpoints_are_those_of_the_first_version() -> None:
    state = nested()
    learner = {"learner/target", "learner/optimizer.m", "learner/optimizer.v"}
    assert set(state.arrays) == learner | {f"worker{k}/history" for k in range(11)}
    assert state.values["iteration"] == 7
    assert state.values["learner"] == {"owed": 0.5, "optimizer": {"steps": 3}}


def test_parts_come_back_as_they_went_in() -> None:
    optimizer = nested().part("learner").part("optimizer")
    assert optimizer.values == {"steps": 3}
    assert {name: array.tolist() for name, array in optimizer.arrays.items()} == {"m": [0, 1], "v": [0, 1, 2]}


def test_numbered_parts_are_told_apart() -> None:
    workers = nested().parts("worker")
    assert [worker.values["number"] for worker in workers] == list(range(11))
    assert [worker.arrays["history"].tolist() for worker in workers] == [[k, k] for k in range(11)]
    assert nested().parts("nobody") == []


def test_a_part_that_is_not_there_is_missed() -> None:
    with pytest.raises(KeyError):
        nested().part("policy")
