"""The state of anything that can be saved: plain JSON values beside named arrays, never a pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class State:
    """`values` must survive JSON unchanged (64-bit and larger integers too); `arrays` go to safetensors.

    A state may have parts, which are states: the values of a part stand as a mapping under its name, and its arrays as
    `name.array`, or in the outermost state of a checkpoint `name/array`. `files` are in somebody else's format, by
    their paths in the checkpoint's folder; only the outermost state has any.
    """

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, separator: str = ".", /, **parts: Any) -> State:
        """A state of named parts, each a state of its own, an array, or a plain value."""
        values: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for name, part in parts.items():
            if isinstance(part, State):
                values[name] = part.values
                for key, array in part.arrays.items():
                    arrays[f"{name}{separator}{key}"] = array
            elif isinstance(part, np.ndarray):
                arrays[name] = part
            else:
                values[name] = part
        return cls(values, arrays)

    def part(self, name: str) -> State:
        """The part of this name, which `of` was given as a state."""
        arrays: dict[str, NDArray[Any]] = {}
        for key, array in self.arrays.items():
            if key.startswith((f"{name}.", f"{name}/")):
                arrays[key[len(name) + 1 :]] = array
        return State(self.values[name], arrays)

    def parts(self, name: str) -> list[State]:
        """The parts `name0`, `name1` and so on, as many as there are."""
        found: list[State] = []
        while f"{name}{len(found)}" in self.values:
            found.append(self.part(f"{name}{len(found)}"))
        return found
