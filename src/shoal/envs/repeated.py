"""Observations of varying length: a space for them, and what they hold, item by item."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from shoal.errors import ConfigError


class Repeated(spaces.Sequence):
    """Up to `max_len` members of a space, as a tuple or a list: units in sight, jobs in a queue, obstacles."""

    def __init__(self, child_space: spaces.Space[Any], max_len: int, seed: int | None = None) -> None:
        if isinstance(max_len, bool) or not isinstance(max_len, int | np.integer) or max_len < 1:
            raise ConfigError(f"Repeated: max_len must be a whole number, at least 1 (got {max_len!r})")
        super().__init__(child_space, seed)
        self.child_space, self.max_len = child_space, int(max_len)

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[Any, ...]:
        """Any number of members from 0 to `max_len`, or what gymnasium's arguments ask for, at most `max_len`."""
        if mask is None and probability is None:
            count = int(self.np_random.integers(self.max_len + 1))
            return tuple(self.child_space.sample() for _ in range(count))
        drawn: tuple[Any, ...] = super().sample(mask, probability)
        return drawn[: self.max_len]

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple or list of at most `max_len` members."""
        return isinstance(x, tuple | list) and len(x) <= self.max_len and all(map(self.child_space.contains, x))

    def __repr__(self) -> str:
        return f"Repeated({self.child_space}, {self.max_len})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Repeated) and self.max_len == other.max_len and super().__eq__(other)


def items_of(space: spaces.Sequence, value: Any) -> list[Any]:
    """The items of a sequence; a ValueError says what is none."""
    if space.stack:
        return list(iterate(space.stacked_feature_space, value))
    if not isinstance(value, tuple | list) and not (isinstance(value, np.ndarray) and value.ndim):
        raise ValueError(f"is not a tuple or list of items (got {type(value).__name__})")
    return list(value)
