"""`shoal.tune.report`: how a function of the user's own tells what it has reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shoal.errors import ShoalError

_here = threading.local()


def report(metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Tell what the trial has reached, e.g. `report(score=0.5)` or `report({"score": 0.5})`; it may not return.

    It waits until the sweep wants more of this trial, and ends the function where it does not.
    """
    tell = getattr(_here, "tell", None)
    if tell is None:
        raise ShoalError("shoal.tune.report: is called by a function that shoal.tune.run runs, in its own thread")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ShoalError(f"shoal.tune.report: takes names, e.g. report(score={metrics!r})")
    result = {**(metrics or {}), **named}
    if not result:
        raise ShoalError("shoal.tune.report: has nothing to report; write report(score=...)")
    tell({str(name): value for name, value in result.items()})


@contextmanager
def reporting(tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Let `report` in this thread reach `tell`."""
    _here.tell = tell
    try:
        yield
    finally:
        del _here.tell
