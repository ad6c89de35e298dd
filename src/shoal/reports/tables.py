"""Tables of text that fit a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shoal.machine.terminal import printable

if TYPE_CHECKING:
    from shoal.reports.records import TrialRecord

STATUSES = ("running", "finished", "stopped early", "failed", "interrupted", "paused", "waiting")

Column = list[str]
"""A head, and a cell for each row."""


def fitted(columns: Sequence[Column], more: Iterable[Column], width: int) -> tuple[list[Column], list[str]]:
    """The columns, and of `more` those that there is room for beside them; and the heads of the others."""
    found, left = list(columns), []
    for column in more:
        if sum(max(map(len, one)) + 2 for one in (*found, column)) <= width:
            found.append(column)
        else:
            left.append(column[0])
    return found, left


def aligned(columns: Sequence[Column], rights: int) -> list[str]:
    """The lines of a table, the head first; the first `rights` columns are aligned to the right.

    Cells are anybody's text, such as the names of folders.
    """
    columns = [list(map(printable, column)) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        sized = enumerate(zip(row, widths, strict=True))
        cells = (f"{cell:>{wide}}" if at < rights else f"{cell:<{wide}}" for at, (cell, wide) in sized)
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def status_counts(records: Iterable[TrialRecord]) -> str:
    """`4 running, 5 finished, 3 stopped early`."""
    counts = Counter[str](record.status for record in records)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def axis_text(axis: str) -> str:
    """The word for what curves are drawn over, as the head of a column."""
    return "steps" if axis == "timesteps_total" else "results"


def reached_text(record: TrialRecord, axis: str) -> str:
    """How far a trial came."""
    return f"{int(record.last_result[axis]):,}" if axis in record.last_result else "-"
