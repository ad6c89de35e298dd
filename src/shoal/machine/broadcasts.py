"""Signals that a scheduler sends to every process of a job, although only the program that saves should hear them.

`scancel`, and its like elsewhere, signal Ray's daemons and workers as well, which would be gone before the run is
saved. So the daemons block what means "end", and their workers ignore it; who started them ends them, after the save.
"""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ENDINGS = frozenset({signal.SIGTERM, signal.SIGINT})
"""What Ray's daemons block: each of them has a handler of its own, so that it would not do to ignore them."""
WARNINGS = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""What nothing of Ray has a use for."""
LEAVE = signal.SIGRTMIN + 1
"""Tells a `ray start` of ours to leave its cluster; no scheduler sends it."""
WORKER_SETUP = Path(__file__).with_name("ray_worker_setup.py")


def deaf_from_birth(start_process: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose processes begin with all of these signals blocked; for this one nothing changes."""

    @functools.wraps(start_process)
    def started(*given: Any, **named: Any) -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS | WARNINGS)
        try:
            return start_process(*given, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return started


def with_hearing_workers(start_raylet: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's `start_raylet`, whose workers do not inherit that SIGTERM is blocked; nor do simulators below them."""
    signature = inspect.signature(start_raylet)

    @functools.wraps(start_raylet)
    def started(*given: Any, **named: Any) -> Any:
        told = signature.bind(*given, **named)
        told.arguments["setup_worker_path"] = str(WORKER_SETUP)
        return start_raylet(*told.args, **told.kwargs)

    return started


def leave_ending_to_starter(signals: Iterable[signal.Signals] = (signal.SIGTERM,)) -> None:
    """Ignore these in this process, and not in programs that it starts: who has started it ends it otherwise."""
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            signal.signal(number, lambda *_: None)
