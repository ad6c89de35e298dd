"""Action masks: which values of an action's discrete choices an observation allows.

A Dict observation with the key `action_mask` masks the actions. It may be

- one array with a flag for each value of each discrete choice, one choice after another: n flags for Discrete(n), the
  sum of nvec for MultiDiscrete(nvec), and so on through the discrete leaves of a composite action;
- a Tuple of arrays, one for each discrete choice in that order;
- a Dict by the keys of a Dict action, each entry a mask of that action; what has no entry is not masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.envs.spaces import ActionLeaf, ActionSpec, Path, Space, path_name
from shoal.errors import ConfigError

MASK = "action_mask"

Choices = list[tuple[int, int]]
"""Discrete choices of an action: the column of each in a row of actions, and how many values it has."""


@dataclass(frozen=True)
class MaskSpec:
    """How the flags of a mask lie in a row: its arrays one after another."""

    columns: dict[Path, slice]  # of each array, by its place in the observation
    choices: tuple[tuple[int, int], ...]  # what the flags are about, in order (see `Choices`)

    @property
    def size(self) -> int:
        """How many flags there are."""
        return sum(count for _, count in self.choices)

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Where the flags of each choice begin."""
        counts = [count for _, count in self.choices]
        return np.cumsum([0, *counts[:-1]], dtype=np.intp)

    def row(self, obs: Any) -> NDArray[np.bool_]:
        """The flags of one observation; a ValueError refuses what are none."""
        row = np.ones(self.size, bool)
        for path, columns in self.columns.items():
            value = obs
            for key in path:
                value = value[key]
            row[columns] = flags_of(np.asarray(value).reshape(-1))
        return row

    def stuck(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which rows `[B, size]` leave some choice without any value."""
        return np.asarray(~np.logical_or.reduceat(rows, self.starts, axis=1).all(axis=1))

    def trouble(self, row: NDArray[np.bool_]) -> str:
        """What is wrong with a row that is stuck."""
        if len(self.choices) == 1:
            return f"{MASK} allows no action: all its flags are 0"
        stuck = int(np.logical_or.reduceat(row, self.starts).argmin())
        return f"{MASK} allows no value of choice {stuck}: all its flags are 0"

    def ruled_out(self, rows: NDArray[np.bool_], actions: NDArray[Any]) -> NDArray[np.bool_]:
        """Which actions `[B, A]` are not allowed by the masks `[B, size]` that they were chosen under."""
        found = np.zeros(len(rows), bool)
        for (column, _), start in zip(self.choices, self.starts.tolist(), strict=True):
            found |= ~rows[np.arange(len(rows)), start + actions[:, column].astype(np.int64)]
        return found

    def first_allowed(self, row: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """The first value that a row allows, for each masked column of an action."""
        for (column, count), start in zip(self.choices, self.starts.tolist(), strict=True):
            yield column, int(row[start : start + count].argmax())


def mask_spec(space: Space, actions: ActionSpec) -> MaskSpec | None:
    """How an observation space masks these actions; None if it does not, a ConfigError if it cannot."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return None
    columns: dict[Path, slice] = {}
    choices: Choices = []
    end = 0
    for path, about in _matched(space[MASK], (MASK,), actions.leaves, 0):
        begin, end = end, end + sum(count for _, count in about)
        columns[path] = slice(begin, end)
        choices += about
    if not choices:
        raise ConfigError(f"observation '{MASK}' holds no flags; leave it out, or give one flag for each action")
    return MaskSpec(columns, tuple(choices))


def flags_of(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    """The flags that an array of 0 and 1 stands for; a ValueError refuses other numbers."""
    flags = np.asarray(array != 0)
    if not np.array_equal(flags, array):
        raise ValueError(f"{MASK} must hold only 0 and 1 (got {' '.join(str(array.reshape(-1)[:8]).split())})")
    return flags


def _matched(mask: Space, at: Path, leaves: Sequence[ActionLeaf], depth: int) -> Iterator[tuple[Path, Choices]]:
    """Each array of a mask, with the choices that its flags are about."""
    if isinstance(mask, spaces.Dict):
        for key, child in mask.spaces.items():
            under = [leaf for leaf in leaves if len(leaf.path) > depth and leaf.path[depth] == key]
            if not under:
                raise ConfigError(
                    f"observation '{path_name((*at, key))}' masks an action that action_space does not have"
                )
            yield from _matched(child, (*at, key), under, depth + 1)
        return
    name = f"observation '{path_name(at)}'"
    choices = [
        (leaf.columns.start + number, count)
        for leaf in leaves
        if leaf.kind == "categorical"
        for number, count in enumerate(leaf.choices)
    ]
    if not choices:
        kinds = " and ".join(dict.fromkeys(type(leaf.space).__name__ for leaf in leaves))
        raise ConfigError(
            f"{name} can mask Discrete and MultiDiscrete actions, and this action is a {kinds}; leave the mask out"
        )
    arrays = [(at, mask, choices)]
    if isinstance(mask, spaces.Tuple):
        if len(mask.spaces) != len(choices):
            raise ConfigError(f"{name} has {len(mask.spaces)} masks for {len(choices)} choices; give one for each")
        arrays = [((*at, k), child, [choice]) for k, (child, choice) in enumerate(zip(mask, choices, strict=True))]
    for path, child, about in arrays:
        wanted = sum(count for _, count in about)
        if child.shape is None or prod(child.shape) != wanted:
            raise ConfigError(
                f"observation '{path_name(path)}' must have one flag for each of {wanted} values "
                f"(got {child}); use Box(0, 1, ({wanted},))"
            )
        yield path, about
