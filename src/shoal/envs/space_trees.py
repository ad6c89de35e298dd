"""Spaces as plain JSON and back, so that a policy can be used where its environment is not installed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.envs.repeated import Repeated
from shoal.envs.spaces import Space

MOST_NUMBERS = 1 << 25
"""That a Box may have: its bounds are arrays of its shape, and take some hundred MB."""


def space_tree(space: Space) -> dict[str, Any] | None:
    """The space in JSON's types; None of a kind that is not known here."""
    if isinstance(space, spaces.Dict):
        children = {key: space_tree(child) for key, child in space.spaces.items()}
        return None if None in children.values() else {"type": "Dict", "spaces": children}
    if isinstance(space, spaces.Tuple):
        members = [space_tree(child) for child in space.spaces]
        return None if None in members else {"type": "Tuple", "spaces": members}
    if isinstance(space, spaces.Box):
        bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name, **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        nvec = {"nvec": space.nvec.tolist(), "start": start.tolist()}
        return {"type": "MultiDiscrete", "dtype": np.dtype(space.dtype).name, **nvec}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}
    if isinstance(space, Repeated):
        item = space_tree(space.child_space)
        return None if item is None else {"type": "Repeated", "space": item, "max_len": space.max_len}
    if isinstance(space, spaces.Sequence):
        child = space_tree(space.feature_space)
        return None if child is None else {"type": "Sequence", "space": child, "stack": bool(space.stack)}
    return None


def space_from(tree: dict[str, Any]) -> Space:
    """The space that a tree was made of."""
    kind = tree["type"]
    if kind == "Dict":
        return spaces.Dict([(key, space_from(child)) for key, child in tree["spaces"].items()])
    if kind == "Tuple":
        return spaces.Tuple([space_from(child) for child in tree["spaces"]])
    if kind == "Box":
        dtype, shape = np.dtype(tree["dtype"]), tuple(tree["shape"])
        check_numbers(shape)
        low, high = (_array(tree[name], shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(tree["n"], start=tree["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(
            np.array(tree["nvec"]), dtype=np.dtype(tree["dtype"]).type, start=np.array(tree["start"])
        )
    if kind == "Repeated":
        return Repeated(space_from(tree["space"]), tree["max_len"])
    if kind == "Sequence":
        return spaces.Sequence(space_from(tree["space"]), stack=tree["stack"])
    return spaces.MultiBinary(tree["n"])


def check_numbers(shape: Sequence[int]) -> None:
    """A ValueError where a Box of this shape would be too large."""
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"a Box of {list(shape)} has more than {MOST_NUMBERS} numbers")


def _numbers(array: NDArray[Any]) -> list[Any]:
    """The numbers of an array in a row, or the one that they all are; JSON has no infinity, so that is a text."""
    row = array.reshape(-1)
    if (row == row[:1]).all():
        row = row[:1]
    numbers = []
    for number in row.tolist():
        numbers.append(number if np.isfinite(number) else str(number))
    return numbers


def _array(numbers: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    plain = []
    for number in numbers:
        plain.append(float(number) if isinstance(number, str) else number)
    row = np.array(plain, dtype)
    if row.size == 1:
        return np.full(shape, row[0], dtype)
    return row.reshape(shape)
