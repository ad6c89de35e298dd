"""A thread that writes to the disk while training goes on: one piece of work at a time, and one that waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

PATIENCE_S = 2.0
"""How long training waits at most for a disk that is behind, and not again while it stays so."""


class BackgroundWriter:
    """Carries out what it is given, in order.

    At most one piece of work waits while another is carried out. Whoever gives a third waits for the first to end: so
    on a disk that keeps up nothing is left out. After `PATIENCE_S` the newest takes the place of the one that waits,
    which is never carried out. Work must not raise: it keeps its own errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._next: Callable[[], None] | None = None
        self._busy_since: float | None = None
        self._is_behind = self._is_closed = False
        self._thread: threading.Thread | None = None

    def give(self, work: Callable[[], None]) -> bool:
        """Let work be carried out soon; returns whether all that was given before has been or will be."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            if not self._is_behind:
                self._changed.wait_for(lambda: self._next is None, PATIENCE_S)
            is_replaced = self._next is not None
            self._is_behind = is_replaced
            self._next = work
            self._changed.notify_all()
            return not is_replaced

    def busy_s(self) -> float:
        """For how long it has been at its present work; 0 if it has none."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all work is done; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None and self._busy_since is None, timeout)

    def close(self) -> None:
        """Wait for all work and end the thread."""
        self.wait()
        with self._changed:
            thread, self._thread, self._is_closed = self._thread, None, True
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        self._is_closed = False

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._is_closed)
                work, self._next = self._next, None
                if work is None:
                    return
                self._busy_since = monotonic()
                self._changed.notify_all()
            try:
                work()
            finally:
                work = None  # with all the memory that it has
                with self._changed:
                    self._busy_since = None
                    self._changed.notify_all()
