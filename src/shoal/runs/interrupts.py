"""Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP during a run: the first ends it with all saved, a second ends it at once."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from shoal.errors import Interrupted
from shoal.machine.left_processes import end_left_processes
from shoal.machine.signals import ECHO_S, exit_code
from shoal.machine.terminal import can_redraw

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
PRESS_S = 0.3  # of a key that was pressed once
INSIST_S = 5.0  # time for what a cut call cleans up before the cut is repeated
LEAVE_S = 10.0  # after that, within which the call must come out, or a command ends without it

logger = logging.getLogger("shoal.runs")

_set_handler = signal.signal  # Python's own, whatever stands in its place while a run trains


def _is_locking(frame: FrameType | None) -> bool:
    """Whether logging may just have taken a lock that nothing gives back yet; what writes may be raised out of."""
    if frame is None or frame.f_globals.get("__name__") != "logging":
        return False
    return frame.f_code.co_name not in ("emit", "flush")


class Interrupts:
    """Notes the first signal in `signal`; inside `cutting()` also raises `Interrupted`.

    `hold` tells what happens while the user's own loop body runs (`away()`): with it the signal is only noted, without
    it Ctrl-C raises KeyboardInterrupt there as everywhere in Python. `what_is_saved` says what is saved, for a second
    signal that ends the process at once. `when_late` is called once, in another thread, when the enclosed call has not
    come out some seconds after the signal; a command, which has `hold`, ends without it some seconds after that.

    Python hears a signal between two lines of the main thread, which never come while that is in compiled code. So
    another thread reads the numbers of signals from Python's wakeup descriptor, and does the same.

    An environment that takes one of the signals, in whatever call, would leave the run deaf. So `signal.signal` is
    replaced meanwhile: what it is given for these signals has no effect, and what the user's own loop body gives it
    takes effect after the run. Without `is_guarded` that is left alone, for Ray Tune is told to end by its own handler.
    """

    def __init__(self, hold: bool, is_guarded: bool = True) -> None:
        self.signal: int | None = None
        self.what_is_saved: Callable[[], str] = str
        self.when_late: Callable[[int], None] | None = None
        self._heard_at = 0.0
        self._hold = hold
        self._is_guarded = is_guarded
        self._cutting = False
        self._is_insisted = False
        self._is_repeated = False
        self._away = False
        self._owner = os.getpid()
        os.register_at_fork(after_in_child=self._leave_to_parent)
        self._previous: dict[int, Any] = {}
        self._wanted: dict[int, Any] = {}  # what others believe to have set
        self._after: dict[int, Any] = {}  # what the user's loop body has set, for the time after the run
        self._replaced: Callable[..., Any] | None = None
        self._ignored: frozenset[int] = frozenset()
        self._done = threading.Event()
        self._insisting: threading.Thread | None = None
        self._unheard: tuple[int, float] | None = None  # the first signal that the main thread may not have heard
        self._late_at: float | None = None
        self._wakeups: tuple[socket.socket, socket.socket] | None = None
        self._is_deaf = False  # somebody has closed them
        self._postponed: int | None = None  # a signal that came where nothing may be raised

    def install(self) -> None:
        """Take the handlers, again if a library or an environment has replaced them; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if number in self._ignored:
                continue
            present = _set_handler(number, self._handle)
            if present != self._handle:
                self._previous.setdefault(number, present)

    @contextmanager
    def cutting(self, insist: bool = False) -> Iterator[None]:
        """Let a signal cut the enclosed call short; with `insist` again and again, should somebody's code swallow it.

        Whatever the call raises after a signal is taken for its consequence: Ray, or an environment, may have made
        another error of it.
        """
        try:
            self._cutting, self._is_insisted = True, insist
            if self.signal is not None:
                raise Interrupted
            yield
        except (
            Interrupted,
            GeneratorExit,
        ):  # the latter: the signal met a line of contextlib, and nobody waits
            raise
        except BaseException as error:
            if self.signal is None:
                self.signal = self._signal_behind(error)
            if self.signal is None:
                raise
            if not isinstance(error, (KeyboardInterrupt, SystemExit)):
                logger.info("After the signal there was a %s: %s", type(error).__name__, error)
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

    def _signal_behind(self, error: BaseException) -> int | None:
        """The signal that was answered with this error by a handler that took the place of ours.

        It came past `signal.signal`: by a name that a module has imported, or from C.
        """
        if isinstance(error, SystemExit) and self._has_lost(signal.SIGTERM):
            return signal.SIGTERM
        if isinstance(error, KeyboardInterrupt) and self._has_lost(signal.SIGINT):
            return signal.SIGINT
        return None

    def _guard(self) -> None:
        """Put `_only_note` in the place of `signal.signal`."""
        self._replaced = signal.signal
        signal.signal = self._only_note  # type: ignore[assignment]

    def _unguard(self) -> None:
        """Put back what was there, unless somebody else has a hand in it; from now on ours is but a passage."""
        replaced, self._replaced = self._replaced, None
        if replaced is not None and signal.signal == self._only_note:
            signal.signal = replaced

    def _only_note(self, number: int, handler: Any) -> Any:
        """Stand for `signal.signal`: a handler for one of our signals is remembered, and takes no effect."""
        is_main = threading.current_thread() is threading.main_thread()
        is_handler = callable(handler) or handler in (signal.SIG_IGN, signal.SIG_DFL)
        if self._replaced is None or number not in self._previous or not is_main or not is_handler:
            return _set_handler(number, handler)
        before = self._wanted.pop(number, self._handle)
        if handler == self._handle:
            self._after.pop(number, None)
            return before
        self._wanted[number] = handler
        if self._away:
            self._after[number] = handler
        return before

    def _leave_to_parent(self) -> None:
        """Give the handlers back in a forked child, such as one of an AsyncVectorEnv: it has no run to save."""
        self._unguard()
        if self._wakeups is not None:
            signal.set_wakeup_fd(-1)  # what the child hears is not for the parent
        for number in self._previous:
            if signal.getsignal(number) == self._handle:
                _set_handler(number, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # In a forked child, before it could give the handlers back: what is raised here would come out of whatever
            # library is told of the fork at the moment, as a traceback.
            self._leave_to_parent()
            os.kill(os.getpid(), number)
            return
        if self._is_repeated:
            self._is_repeated = False
            if self._cutting:
                self._cut(number, frame)
            return
        if self.signal is not None:
            if not self._is_echo(number):
                self._end_at_once(number)
            return
        self.signal, self._heard_at = number, monotonic()
        if self._cutting:
            self._cut(number, frame)
        elif self._away and not self._hold and number == signal.SIGINT:
            raise KeyboardInterrupt

    def _cut(self, number: int, frame: FrameType | None) -> None:
        """Raise, but where a lock of logging would stay taken for ever: there it is done a moment later."""
        if not _is_locking(frame):
            raise Interrupted
        self._postponed = number
        if self._wakeups is not None:
            with suppress(OSError):
                self._wakeups[1].send(b"\0")

    def _is_echo(self, number: int) -> bool:
        """Whether a further signal says no more than the first: a walltime and a lost terminal never do."""
        if number in (signal.SIGUSR1, signal.SIGHUP):
            return True
        return monotonic() - self._heard_at < (PRESS_S if number == self.signal == signal.SIGINT else ECHO_S)

    def _insist(self, main: int) -> None:
        """Raise again what a bare `except:` of somebody's has swallowed; runs in a thread of its own."""
        while not self._is_done_after(INSIST_S / 2):
            if self._postponed is not None:
                again, self._postponed = self._postponed, None
                self._is_repeated = True
                signal.pthread_kill(main, again)
                continue
            number, heard_at = self.signal, self._heard_at
            if number is None and self._unheard is not None:
                number, heard_at = self._unheard
            if number is None or not self._cutting or monotonic() - heard_at <= INSIST_S:
                continue
            self._be_late(number)
            if self.signal is not None and self._is_insisted and not self._has_lost(number):
                self._is_repeated = True
                signal.pthread_kill(main, number)

    def _be_late(self, number: int) -> None:
        """Save, the first time; a command that still has not come out after some seconds more ends here."""
        if self._late_at is None:
            self._late_at = monotonic()
            if self.when_late is not None:
                self.when_late(number)
        elif self._hold and monotonic() - self._late_at > LEAVE_S:
            words = f"Stopped by {signal.Signals(number).name} without waiting any longer"
            self._end_now(exit_code(number), words)

    def _is_done_after(self, seconds: float) -> bool:
        """Wait for so long, or until the end; note the signals that come meanwhile."""
        if self._wakeups is None or self._is_deaf:
            return self._done.wait(seconds)
        try:
            is_ready = select.select([self._wakeups[0]], [], [], seconds)[0]
            numbers = self._wakeups[0].recv(4096) if is_ready else b""
        except OSError as error:
            self._is_deaf = True
            words = "code in this process has closed files that others had opened (%s); let it close its own alone"
            logger.warning(words, error.strerror)
            return self._done.is_set()
        for number in numbers:
            self._note_unheard(number)
        return self._done.is_set()

    def _note_unheard(self, number: int) -> None:
        """Note a signal that the main thread may hear later, or never; a second one ends the process also then."""
        if number not in SIGNALS or self._has_lost(number):
            return
        if self._unheard is None:
            self._unheard = number, monotonic()
            return
        is_late = self.signal is None and self._late_at is not None and self._cutting
        if is_late and number in (signal.SIGINT, signal.SIGTERM):
            self._end_at_once(number)

    def _listen(self) -> None:
        """Have Python write down the number of every signal, unless somebody else has it do so."""
        near, far = socket.socketpair()
        for end in (near, far):
            end.setblocking(False)
        before = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            near.close()
            far.close()
            return
        self._wakeups = near, far

    def _end_listening(self) -> None:
        if self._wakeups is None:
            return
        if signal.set_wakeup_fd(-1) != self._wakeups[1].fileno():
            logger.debug("somebody has taken the wakeup descriptor of signals")
        for end in self._wakeups:
            if self._is_deaf:
                end.detach()  # the number may be somebody else's file by now
            with suppress(OSError):
                end.close()
        self._wakeups = None

    def _has_lost(self, number: int) -> bool:
        """Whether a library has replaced the handler that was taken."""
        return number in self._previous and signal.getsignal(number) != self._handle

    def _end_at_once(self, number: int) -> None:
        self._end_now(128 + number, f"Stopped at once by {signal.Signals(number).name}")

    def _end_now(self, code: int, words: str) -> None:
        """End the process at once; nothing on the disk is half-written that a reader would believe."""
        with suppress(Exception):
            if can_redraw():
                os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # a live view hides the cursor
        with suppress(Exception):
            if select.select([], [2], [], 0)[1]:  # somebody who reads nothing must not hold this up
                os.write(2, f"{words}{self.what_is_saved()}\n".encode())
        with suppress(Exception):
            end_left_processes(grace_s=0.0, ending_s=0.0)  # of a command alone
        os._exit(code)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            # Of a shell script's background job, or under nohup: it must not hear what is not for it.
            self._ignored = frozenset(n for n in SIGNALS if signal.getsignal(n) is signal.SIG_IGN)
            self.install()
            if self._is_guarded:
                self._guard()
            self._listen()
            main = threading.get_ident()
            self._insisting = threading.Thread(target=self._insist, args=(main,), name="shoal-signals", daemon=True)
            self._insisting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._wakeups is not None:
            with suppress(OSError):
                self._wakeups[1].send(b"\0")
        if self._insisting is not None:
            self._insisting.join()
            self._end_listening()
        self._unguard()
        for number, handler in {**self._previous, **self._after}.items():
            # None stands for a handler that was not set from Python, which Python cannot put back.
            _set_handler(number, signal.SIG_DFL if handler is None else handler)
