"""Where the `shoal` command begins and ends: what signals mean while nobody else has an answer to them."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys

from shoal.machine.signals import RESUME_ME

THREADS_S = 10.0  # for threads to end that a simulator has started, when everything else has ended

TYPE_CHECKING = False  # for until the handlers are set, a signal is lost: `typing` is most of what there is to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def main() -> None:
    """Run the command; Ctrl-C before it can answer by itself, and after its end, makes no traceback.

    SIGUSR1 says that the walltime is near: whoever hears it before anything was begun wants to be started again.
    """
    before = signal.getsignal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell script's background job must not hear Ctrl-C
            signal.signal(number, _leave)
    if sys.stderr is not None:
        faulthandler.enable()  # of a simulator's code that crashes the process, the place is told
    from shoal.cli.main import main as command
    from shoal.machine.left_processes import mark_what_is_started

    mark_what_is_started()
    atexit.register(_end_what_is_left)  # before all others, which are called before it then
    signal.signal(signal.SIGINT, before)
    try:
        command(prog_name="shoal")
    except SystemExit as end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit code is settled
        code = 0 if end.code is None else end.code
        _end_children_of_multiprocessing()
        if isinstance(code, int) and ("ray" in sys.modules or _threads_live_on()):
            _end_without_teardown(code)
        raise


def _threads_live_on() -> bool:
    """Whether threads that somebody's simulator has started do not end, for which Python would wait without end."""
    import threading
    from time import monotonic

    until = monotonic() + THREADS_S
    others = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    for thread in others:
        thread.join(max(until - monotonic(), 0.0))
    names = ", ".join(each.name for each in others if each.is_alive())
    if names and sys.stderr is not None:
        words = f"threads that something has started live on after {THREADS_S:.0f} s, and end with the process: {names}"
        sys.stderr.write(f"Warning: {words}\n")
    return bool(names)


def _end_children_of_multiprocessing() -> None:
    """End those whose end Python would wait for, though a simulator has forgotten them."""
    if "shoal.envs.making" in sys.modules and "multiprocessing.process" in sys.modules:
        from multiprocessing.process import active_children

        for child in active_children():
            child.terminate()


def _end_what_is_left() -> None:
    """End what simulators in this process have started and not ended; commands that make none leave processes alone."""
    if "shoal.envs.making" not in sys.modules:
        return
    from shoal.machine.left_processes import end_left_processes

    if (names := end_left_processes()) and sys.stderr is not None:
        words = (
            f"ended what the environment had left running: {', '.join(sorted(set(names)))}; its close() should do that"
        )
        sys.stderr.write(f"Warning: {words}\n")


def _end_without_teardown(code: int) -> NoReturn:
    """End with this code: the threads of a Ray whose start was cut short can crash Python's teardown, and lose it."""
    from contextlib import suppress

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(130 if number == signal.SIGINT else RESUME_ME)
