"""A signal stays with who has it while a library takes it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator

import pytest

from shoal.machine.signal_keeper import kept_from_libraries

LIBC = ctypes.CDLL(None)
LIBC.signal.restype = ctypes.c_void_p
LIBC.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
IGNORED = ctypes.c_void_p(1)  # SIG_IGN
DEADLINE_S = 20.0


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that Python's handler of SIGUSR2 was given."""
    found: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGUSR2, before)


def is_heard(heard: list[int]) -> bool:
    count = len(heard)
    os.kill(os.getpid(), signal.SIGUSR2)
    return len(heard) > count


def test_what_a_library_takes_in_c_is_put_back_while_it_starts(heard: list[int]) -> None:
    with kept_from_libraries(signal.SIGUSR2):
        for _ in range(3):
            LIBC.signal(signal.SIGUSR2, IGNORED)
            until = time.monotonic() + DEADLINE_S
            while not is_heard(heard):
                assert time.monotonic() < until
                time.sleep(0.001)
    assert is_heard(heard)


def test_what_is_taken_at_the_very_end_is_put_back_too(heard: list[int]) -> None:
    with kept_from_libraries(signal.SIGUSR2):
        LIBC.signal(signal.SIGUSR2, IGNORED)
    assert is_heard(heard)


def test_without_it_the_signal_is_lost(heard: list[int]) -> None:
    LIBC.signal(signal.SIGUSR2, IGNORED)
    assert not is_heard(heard)
