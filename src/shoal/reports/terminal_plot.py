"""Plots of characters for a terminal: dots of Braille where colours tell lines apart, else a letter for each line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from shoal.data.number_text import tick_text
from shoal.reports.drawing import Scale, scale_of
from shoal.reports.plot_data import Panel

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ONE_OF_MANY = "·"
BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a cell's dots, four rows of two."""

Paint = Callable[[str, int], str]
"""Colours a character as the line of that number."""


def terminal_plot(panel: Panel, width: int, height: int, paint: Paint | None = None) -> list[str]:
    """The lines of text of a panel at most `width` wide; without `paint`, several lines are drawn as letters."""
    xs = np.concatenate([line.band.x for line in panel.lines])
    ys = np.concatenate([line.band.middle for line in panel.lines])
    y = scale_of([float(ys.min()), float(ys.max())], 0.0, 1.0)
    x = scale_of([float(xs.min()), float(xs.max())], 0.0, 1.0)
    ticks = y.ticks(5)
    margin = max(len(tick_text(value)) for value in ticks) + 1
    named = [(place, line.label) for place, line in zip(panel.colours, panel.lines) if line.label]
    is_dotted = paint is not None or len(panel.lines) == 1 or not named
    letters = LETTERS if len(named) == len(panel.lines) else ONE_OF_MANY + LETTERS
    cells = Cells(max(width - margin - 1, 10), max(height, 4), "" if is_dotted else letters)
    for place, line in zip(panel.colours, panel.lines):
        points = [(x(a), y(b)) for a, b in zip(line.band.x.tolist(), line.band.middle.tolist())]
        cells.draw(points, place)
    labels = {round((1 - y(value)) * (cells.height - 1)): tick_text(value) for value in ticks}
    rows = [
        f"{labels.get(row, ''):>{margin - 1}} {'┤' if row in labels else '│'}{cells.row(row, paint)}".rstrip()
        for row in range(cells.height)
    ]
    below = _below(x, cells.width, margin, panel.x_label)
    if len(panel.lines) == 1:
        return [panel.y_label, *rows, *below]
    return [panel.y_label, *rows, *below, *(_named(place, label, cells.letters, paint) for place, label in named)]


def _below(x: Scale, width: int, margin: int, name: str) -> list[str]:
    """The horizontal axis with its first and last value and its name."""
    first, last = tick_text(x.low), tick_text(x.high)
    axis, start = f"{' ' * margin}└{'─' * width}", " " * (margin + 1)
    room = width - len(first) - len(last)
    if room < len(name) + 2:  # a narrow terminal has a line of its own for the name
        return [axis, f"{start}{first}{' ' * max(room, 1)}{last}", f"{start}{name}"]
    return [axis, f"{start}{first}{name.center(room)}{last}".rstrip()]


def _named(place: int, label: str, letters: str, paint: Paint | None) -> str:
    mark = letters[place % len(letters)] if letters else "━━"
    return f"  {paint(mark, place) if paint is not None else mark} {label}"


class Cells:
    """A grid of characters, each with the dots that lines have set in it and the last line that went through.

    With `letters`, that line's letter stands there in place of the dots.
    """

    def __init__(self, width: int, height: int, letters: str) -> None:
        self.width, self.height, self.letters = width, height, letters
        self._dots = np.zeros((height, width), np.int64)
        self._owner = np.full((height, width), -1)

    def draw(self, points: Sequence[tuple[float, float]], owner: int) -> None:
        """Draw a line through points whose coordinates run from 0 to 1, upwards."""
        for start, end in pairwise([points[0], *points]):
            steps = int(max(abs(end[0] - start[0]) * self.width * 2, abs(end[1] - start[1]) * self.height * 4, 1))
            for share in np.linspace(0, 1, steps + 1):
                self._set(start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]), owner)

    def row(self, row: int, paint: Paint | None) -> str:
        """One row of characters."""
        text = ""
        for dots, owner in zip(self._dots[row].tolist(), self._owner[row].tolist()):
            mark = self.letters[owner % len(self.letters)] if self.letters else chr(BRAILLE + dots)
            if not dots:
                text += " "
            else:
                text += mark if paint is None else paint(mark, owner)
        return text

    def _set(self, x: float, y: float, owner: int) -> None:
        across, down = round(x * (self.width * 2 - 1)), round((1 - y) * (self.height * 4 - 1))
        row, column = down // 4, across // 2
        self._dots[row, column] |= DOTS[down % 4][across % 2]
        self._owner[row, column] = owner
