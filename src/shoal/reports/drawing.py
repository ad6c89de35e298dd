"""Tags, scales and ticks: what every chart of the page is made of."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.problems import printable
from shoal.data.number_text import tick_text
from shoal.data.results import plain_json


def escaped(text: object) -> str:
    """Text of anybody's as text of the page."""
    return html.escape(printable(str(text)))


def tag(name: str, /, *inside: str, **attributes: object) -> str:
    """An element; `class_` and `data_t` are the attributes `class` and `data-t`; what is inside is markup already."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{''.join(inside)}</{name}>" if inside else f"<{name}{pairs}/>"


def chart(
    title: str, width: int, height: int, *inside: str, class_: str = "", rows: Sequence[Sequence[Any]] = ()
) -> str:
    """A drawing with a title that a screen reader reads; `rows` are its numbers, the head first, to be saved as CSV."""
    return tag(
        "div",
        tag(
            "svg",
            tag("title", escaped(title)),
            *inside,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            style=f"--wide:{width}px",
            role="img",
            aria_label=title,
        ),
        class_=f"chart {class_}".strip(),
        tabindex="0",
        data_rows=json.dumps(plain_json([list(row) for row in rows])) if rows else None,
    )


def label(text: str, x: float, y: float, anchor: str = "middle", class_: str | None = None) -> str:
    """A word in a drawing."""
    return tag("text", escaped(text), x=x, y=y, text_anchor=anchor, class_=class_)


def line(points: Iterable[tuple[float, float]], **attributes: object) -> str:
    """A line through points."""
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **attributes)


@dataclass(frozen=True)
class Scale:
    """From values `low` to `high` to places `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high = self._at(self.low), self._at(self.high)
        share = (self._at(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values along it."""
        if self.log and self.high / self.low >= 10:
            return _log_ticks(self.low, self.high, most)
        return round_values(self.low, self.high, most)

    def _at(self, value: float) -> float:
        return math.log(value) if self.log else value


def scale_of(values: Sequence[float], start: float, end: float, log: bool = False) -> Scale:
    """A scale that holds all values, with some room where they are all the same."""
    low, high = min(values), max(values)
    if low == high:
        room = abs(low) * 0.1 or 1.0
        low, high = (low / 1.5, high * 1.5) if log else (low - room, high + room)
    return Scale(low, high, start, end, log)


@dataclass(frozen=True)
class Frame:
    """A drawing of `width` by `height` with room for words around what is drawn."""

    width: int
    height: int
    left: int
    top: int
    bottom: int

    @property
    def across(self) -> tuple[float, float]:
        """Where the horizontal axis starts and ends."""
        return self.left, self.width - 12

    @property
    def up(self) -> tuple[float, float]:
        """Where the vertical axis starts and ends."""
        return self.height - self.bottom, self.top

    def lattice(self, x: Scale, y: Scale, x_name: str, y_name: str) -> str:
        """The lines and words of both axes."""
        parts = [
            label(x_name, sum(self.across) / 2, self.height - 6, class_="name"),
            label(y_name, self.left, self.top - 9, "start", "name"),
        ]
        for value in x.ticks(7):
            parts.append(tag("line", x1=x(value), x2=x(value), y1=self.top, y2=self.up[0]))
            parts.append(label(tick_text(value), x(value), self.up[0] + 16, class_="tick"))
        for value in y.ticks(6):
            parts.append(tag("line", x1=self.left, x2=self.across[1], y1=y(value), y2=y(value)))
            parts.append(label(tick_text(value), self.left - 6, y(value) + 4, "end", "tick"))
        return tag("g", *parts, class_="grid")


def round_values(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most about `most` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    inside = [value for value in found if low * 0.999 <= value <= high * 1.001]
    return inside[:: -(-len(inside) // most)] if inside else [low, high]


def _attribute(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else html.escape(printable(str(value)))
