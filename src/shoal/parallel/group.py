"""The learners that share one batch, as each of them sees the others."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

Numbers = TypeVar("Numbers", bound=NDArray[Any])


class Group(Protocol):
    """Learners that call the same methods in the same order, with arrays of the same shape."""

    rank: int
    size: int

    def sum(self, x: Numbers) -> Numbers:
        """The sum of every learner's array, to the bit the same for all; `x` may be overwritten."""


class Alone:
    """The group of one."""

    rank = 0
    size = 1

    def sum(self, x: Numbers) -> Numbers:
        """See `Group`."""
        return x
