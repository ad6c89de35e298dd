"""A run that ends in time: before its walltime does, saved, and to be started again."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import TracebackType

from shoal.data.number_text import duration_text
from shoal.machine.deadlines import Deadline

logger = logging.getLogger("shoal.runs")

MARGIN_S = 120.0
SHARE = 0.25  # of the time that is left at the start: a short walltime has a short margin
LOOK_S = 60.0  # between two looks at the clock, which may be set, or stop with the machine


class Walltime:
    """Watches a deadline: `is_over` between two iterations, and a signal to the process where one does not end.

    The margin is 120 s (of a short walltime a quarter), or twice what an iteration and a save have taken, if that is
    longer. Within an iteration only the former counts, and time for a save. SIGUSR1 then ends the run as if the
    scheduler had sent it. A deadline that comes near is asked for again, for it may have been moved.
    """

    def __init__(self, deadline: Deadline | None) -> None:
        self.sentence: str | None = None  # why the run ends, once it does
        self.save_s = 0.0  # what the last save took
        self._deadline = deadline
        self._least = 0.0 if deadline is None else min(MARGIN_S, SHARE * max(deadline.left(), 0.0))
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def is_over(self, iteration_s: float) -> bool:
        """Whether the time that is left may not do for another iteration and a save."""
        return self._comes_within(max(self._least, 2 * (iteration_s + self.save_s)))

    def _comes_within(self, margin: float) -> bool:
        with self._lock:
            if self._deadline is None or self.sentence is not None:
                return self.sentence is not None
            if self._deadline.left() >= margin:
                return False
            before = self._deadline.at
            self._deadline = self._deadline.asked_again()
            if self._deadline.at > before + 1:
                logger.info("%s now ends at %s.", self._deadline.source, _clock(self._deadline.at))
            if self._deadline.left() >= margin:
                return False
            left = duration_text(max(self._deadline.left(), 0.0))
            self.sentence = f"{self._deadline.source} ends at {_clock(self._deadline.at)}, in {left}"
            return True

    def _watch(self, main: int) -> None:
        """Signal the main thread when an iteration has taken up the margin; runs in a thread of its own."""
        assert self._deadline is not None
        while not self._done.wait(min(LOOK_S, max(self._deadline.left() - self._hard_margin(), 0.05))):
            if self._comes_within(self._hard_margin()):
                if not self._done.is_set():
                    signal.pthread_kill(main, signal.SIGUSR1)
                return

    def _hard_margin(self) -> float:
        return max(self._least, 2 * self.save_s)

    def __enter__(self) -> Walltime:
        if self._deadline is not None:
            logger.info(
                "%s ends at %s: the run saves and ends before.", self._deadline.source, _clock(self._deadline.at)
            )
            if threading.current_thread() is threading.main_thread():
                main = threading.get_ident()
                self._thread = threading.Thread(target=self._watch, args=(main,), name="shoal-walltime", daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(1.0)  # it may be asking a scheduler that does not answer


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
