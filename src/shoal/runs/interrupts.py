"""Ctrl-C, SIGTERM and SIGUSR1 during a run: the first ends it with everything saved, the second ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
ECHO_S = 1.0  # schedulers and launchers tell every process of a job, and some of those pass it on
RESUME_ME = 85  # the exit code of a run that was saved because its walltime is near, and wants to be started again


def exit_code(number: int) -> int:
    """What a program ends with after it has saved because of a signal."""
    return RESUME_ME if number == signal.SIGUSR1 else 128 + number


class Interrupted(BaseException):
    """Raised inside a long call that a signal cuts short; no Exception, so that environments' handlers let it pass."""


class Interrupts:
    """Notes the first signal in `signal`; inside `cutting()` also raises `Interrupted`.

    `hold` tells what happens while the user's own loop body runs (`away()`): with it the signal is only noted, without
    it Ctrl-C raises KeyboardInterrupt there as everywhere in Python.
    """

    def __init__(self, hold: bool) -> None:
        self.signal: int | None = None
        self._heard_at = 0.0
        self._hold = hold
        self._cutting = False
        self._away = False
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Take the handlers, again if a library has replaced them since; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:  # a shell script's background job must not hear its Ctrl-C
                continue
            present = signal.signal(number, self._handle)
            if present != self._handle:
                self._previous.setdefault(number, present)

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Let a signal cut the enclosed call short."""
        try:
            self._cutting = True
            if self.signal is not None:
                raise Interrupted
            yield
        except SystemExit:
            # Ray takes SIGTERM for itself while it starts, and answers it by leaving the program.
            if self.signal is not None or not self._has_lost(signal.SIGTERM):
                raise
            self.signal = signal.SIGTERM
            raise Interrupted from None
        finally:
            self._cutting = False

    @contextmanager
    def away(self) -> Iterator[None]:
        """Mark the time that belongs to the user's loop body."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            if number == self.signal != signal.SIGINT and monotonic() - self._heard_at < ECHO_S:
                return
            _end_now(number)
        self.signal, self._heard_at = number, monotonic()
        if self._cutting:
            raise Interrupted
        if self._away and not self._hold and number == signal.SIGINT:
            raise KeyboardInterrupt

    def _has_lost(self, number: int) -> bool:
        """Whether a library has replaced the handler that was taken."""
        return number in self._previous and signal.getsignal(number) != self._handle

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _end_now(number: int) -> None:
    """End the process without a word; nothing on the disk is half-written that a reader would believe."""
    with suppress(OSError, ValueError):
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # a live view hides the cursor
    os._exit(128 + number)
