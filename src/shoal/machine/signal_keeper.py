"""A signal stays with who has it, while a library that takes it in C is loaded and started."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGACTION_BYTES = 512  # more than any system's `struct sigaction` has
HANDLER_BYTES = ctypes.sizeof(ctypes.c_void_p)  # at its beginning
LOOKING_S = 0.002


@contextmanager
def kept_from_libraries(number: int) -> Iterator[None]:
    """Leave a signal to who has it, while a library that takes it in C is loaded and started.

    Python can set handlers in the main thread alone, which the library keeps busy, and learns nothing of what is set in
    C. So another thread looks at the system's own record, and puts back what was there within milliseconds.
    """
    libc, was = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    is_over = threading.Event()
    libc.sigaction(number, None, was)

    def put_back() -> None:
        now = ctypes.create_string_buffer(SIGACTION_BYTES)
        libc.sigaction(number, None, now)
        if now.raw[:HANDLER_BYTES] != was.raw[:HANDLER_BYTES]:
            libc.sigaction(number, was, None)

    def watch() -> None:
        while not is_over.wait(LOOKING_S):
            put_back()

    watcher = threading.Thread(target=watch, name="shoal-signal-keeper", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        put_back()
