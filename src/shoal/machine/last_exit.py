"""The end of a process whose main thread may never come back from somebody's compiled code."""

from __future__ import annotations

import ctypes
import os
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CLOCK_MONOTONIC = 1
SIGEV_THREAD = 2
WORDS_FIRST_S = 1.0  # between what is said and the end


class _Value(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("pointer", ctypes.c_void_p))


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux, whose 64 bytes are the same with every C library."""

    _fields_ = (
        ("value", _Value),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 32),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: of what repeats, and of the first time."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns"))


@contextmanager
def ending_anyway(after_s: float, code: int, words: str) -> Iterator[None]:
    """End the process with this code, and a sentence on stderr, if what is enclosed has not ended after some seconds.

    It is the C library that ends it, so nothing of Python's is needed: not the main thread, which may be in a compiled
    loop, nor the interpreter's lock, which that loop may hold. Where a C library has no such timers, a thread does it.
    """
    try:
        told = _after(after_s, "system", f"printf '%s\\n' {shlex.quote(words)} >&2")
        ended = _after(after_s + WORDS_FIRST_S, "_exit", code)
    except (AttributeError, OSError):
        with _by_thread(after_s, code, words):
            yield
        return
    try:
        yield
    finally:
        for timer in (told, ended):
            timer.cancel()


class _Timer:
    """A call of a function of the C library that is due, by a thread that the library makes for it."""

    def __init__(self, library: ctypes.CDLL, event: _Event, after_s: float) -> None:
        self._library = library
        self._timer = ctypes.c_void_p()
        if library.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")
        seconds, rest = divmod(after_s, 1)
        due = _Times(0, 0, int(seconds), int(1e9 * rest) + 1)
        library.timer_settime(self._timer, 0, ctypes.byref(due), None)

    def cancel(self) -> None:
        """Forget the call."""
        self._library.timer_delete(self._timer)


def _after(after_s: float, name: str, argument: int | str) -> _Timer:
    """Have the C library call one of its functions of one argument."""
    library = ctypes.CDLL(None, use_errno=True)
    function = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    event = _Event(notify=SIGEV_THREAD, function=function)
    if isinstance(argument, int):
        event.value.number = argument
    else:
        text = argument.encode() + b"\0"
        library.malloc.restype = ctypes.c_void_p  # the text must be there even when Python's objects are gone
        event.value.pointer = library.malloc(ctypes.c_size_t(len(text)))
        ctypes.memmove(event.value.pointer, text, len(text))
    return _Timer(library, event, after_s)


@contextmanager
def _by_thread(after_s: float, code: int, words: str) -> Iterator[None]:
    is_done = threading.Event()

    def end() -> None:
        if not is_done.wait(after_s):
            with suppress(OSError):
                os.write(2, f"{words}\n".encode())
            os._exit(code)

    thread = threading.Thread(target=end, name="shoal-last-exit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
