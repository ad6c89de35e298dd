"""Whether somebody watches: what may be drawn and coloured, and what must be plain lines."""

from __future__ import annotations

import os
import sys

from shoal.machine.launchers import is_rank

LIVE_VIEW = "SHOAL_LIVE_VIEW"
"""1: draw on any terminal, 0: never."""


def can_redraw() -> bool:
    """Whether the output is a person's terminal on which lines can be drawn again."""
    if not is_terminal() or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return False
    return os.environ.get(LIVE_VIEW) != "0"


def is_terminal() -> bool:
    """Whether the output is a terminal that a person looks at.

    Open MPI gives its ranks a pseudo-terminal and copies what they write to wherever its own output goes: to a file, or
    between the lines of the other ranks. So below a launcher a terminal tells nothing, unless the user says so.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return os.environ.get(LIVE_VIEW) == "1" or not is_rank(os.environ)


def printable(text: str) -> str:
    """The text on one line, without control characters that a terminal would obey."""
    return text if text.isprintable() else repr(text)[1:-1]
