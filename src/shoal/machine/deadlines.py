"""When the time of this process is over: told by the scheduler, by `shoal launch` or by the user."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

VARIABLE = "SHOAL_DEADLINE"
"""Seconds since 1970: by this, `shoal launch` tells its command when the walltime of the job ends."""


@dataclass(frozen=True)
class Deadline:
    """When somebody will end this process, in seconds since 1970, and who says so.

    `ask` asks again, because a walltime may be extended while a job runs; None: nobody can be asked, or knows.
    """

    at: float
    source: str
    ask: Callable[[], float | None] | None = None

    def left(self) -> float:
        """The seconds until then."""
        return self.at - time.time()

    def asked_again(self) -> Deadline:
        """The same, or a later one if it was moved."""
        found = self.ask() if self.ask is not None else None
        return self if found is None else Deadline(found, self.source, self.ask)


def told_deadline() -> Deadline | None:
    """The one that `shoal launch` has told; None if there is none, or it makes no sense."""
    try:
        at = float(os.environ.get(VARIABLE, ""))
    except ValueError:
        return None
    return Deadline(at, "the job's walltime") if isfinite(at) else None


def earlier(*deadlines: Deadline | None) -> Deadline | None:
    """The first of several to come."""
    return min((each for each in deadlines if each is not None), key=lambda each: each.at, default=None)
