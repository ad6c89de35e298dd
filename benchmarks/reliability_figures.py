"""What a part of the reliability benchmark comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from record import Bar


@dataclass(frozen=True)
class Found:
    """A figure, how often it was tried, and what it is held against."""

    count: int
    figure: str
    bars: Sequence[Bar]
    more: dict[str, Any] = field(default_factory=dict)


def none_of(what: str, number: int) -> Bar:
    """The bar of what must not happen."""
    return Bar(what, number, 0, at_least=False)


def all_of(what: str, number: int, count: int) -> Bar:
    """The bar of what must happen each time."""
    return Bar(what, number, count, at_least=True)
