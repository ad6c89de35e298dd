"""Results made flat, their numbers, and their JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shoal.data.results import flat, is_number, number_in, numbers, plain_json

RESULT = {"a": {"b": {"c": 1}, "d": True}, "e": [1], "f": None, "g": "x", "h": np.int64(3), "i": float("inf")}


def test_names_are_joined() -> None:
    assert flat(RESULT) == {"a/b/c": 1, "a/d": True, "g": "x", "h": 3, "i": float("inf")}
    assert numbers(RESULT) == {"a/b/c": 1, "h": 3}
    assert flat(flat(RESULT)) == flat(RESULT), "what is flat stays so"


@pytest.mark.parametrize(
    ("name", "found"),
    [("a/b/c", 1.0), ("a/b", None), ("a/d", None), ("a/x/y", None), ("g", None), ("i", None), ("", None)],
)
def test_one_number_without_the_others(name: str, found: float | None) -> None:
    assert number_in(RESULT, name) == found
    assert number_in(flat(RESULT), name) == found


def test_what_is_a_number() -> None:
    assert all(is_number(value) for value in (0, -1.5, np.float64(2), 10**30))
    assert not any(is_number(value) for value in (True, None, "1", float("nan"), -float("inf"), [1]))


def test_json_has_no_other_types() -> None:
    value = {1: (np.float32(0.5), np.arange(2)), "nan": float("nan"), "path": Path("x"), "deep": {"none": None}}
    plain = plain_json(value)
    assert plain == {"1": [0.5, [0, 1]], "nan": None, "path": "x", "deep": {"none": None}}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
