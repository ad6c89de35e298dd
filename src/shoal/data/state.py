"""The state of anything that can be saved: plain JSON values beside named arrays, never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.frames import Frames


@dataclass(frozen=True)
class Ring:
    """Which arrays of a state are rows of a circle that are only added, so that a checkpoint need not repeat them.

    Rows have numbers, and a row never changes: those from `begin` to `end` are there, number n in place n modulo
    `rows`. The arrays of a ring called `name` are `name.COLUMN.0` and, where the circle begins anew, `name.COLUMN.1`.
    `numbering` tells rows of one number apart that are not the same, as two trainings from one checkpoint have them;
    `follows` is the numbering of which this one is a continuation, and the number up to which both have the same rows.
    Where columns hold ids of frames, `frames` has the stores of these, by names that no column has.
    """

    numbering: str
    begin: int
    end: int
    rows: int
    columns: tuple[str, ...]
    follows: tuple[str, int] | None = None
    frames: Mapping[str, Frames] = field(default_factory=dict)

    def stretches(self) -> list[tuple[int, int]]:
        """The numbers that lie side by side, as at most two ranges."""
        split = min(self.end, self.begin - self.begin % self.rows + self.rows)
        found = [(self.begin, split), (split, self.end)]
        return [(begin, end) for begin, end in found if begin < end]


@dataclass(frozen=True)
class State:
    """`values` must survive JSON unchanged (64-bit and larger integers too); `arrays` go to safetensors.

    A state may have parts, which are states: the values of a part stand as a mapping under its name, and its arrays as
    `name.array`, or in the outermost state of a checkpoint `name/array`. `files` are in somebody else's format, by
    their paths in the checkpoint's folder; only the outermost state has any. `rings` says of some arrays how they grow,
    by the name that theirs begin with; the name of the state's own is empty.
    """

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    rings: dict[str, Ring] = field(default_factory=dict)

    @classmethod
    def of(cls, separator: str = ".", /, **parts: Any) -> State:
        """A state of named parts, each a state of its own, an array, or a plain value."""
        values: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        rings: dict[str, Ring] = {}
        for name, part in parts.items():
            if isinstance(part, State):
                values[name] = part.values
                for key, ring in part.rings.items():
                    rings[f"{name}{separator}{key}" if key else name] = ring
                for key, array in part.arrays.items():
                    arrays[f"{name}{separator}{key}"] = array
            elif isinstance(part, np.ndarray):
                arrays[name] = part
            else:
                values[name] = part
        return cls(values, arrays, rings=rings)

    def joined(self, *others: State) -> State:
        """The values, arrays and rings of several states as those of one."""
        values, arrays, rings = dict(self.values), dict(self.arrays), dict(self.rings)
        for other in others:
            values |= other.values
            arrays |= other.arrays
            rings |= other.rings
        return State(values, arrays, rings=rings)

    def part(self, name: str) -> State:
        """The part of this name, which `of` was given as a state."""
        arrays: dict[str, NDArray[Any]] = {}
        for key, array in self.arrays.items():
            if key.startswith((f"{name}.", f"{name}/")):
                arrays[key[len(name) + 1 :]] = array
        rings: dict[str, Ring] = {}
        for key, ring in self.rings.items():
            if key == name or key.startswith((f"{name}.", f"{name}/")):
                rings[key[len(name) + 1 :]] = ring
        return State(self.values[name], arrays, rings=rings)

    def parts(self, name: str) -> list[State]:
        """The parts `name0`, `name1` and so on, as many as there are."""
        found: list[State] = []
        while f"{name}{len(found)}" in self.values:
            found.append(self.part(f"{name}{len(found)}"))
        return found
