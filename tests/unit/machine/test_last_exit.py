"""A process ends although its main thread is in compiled code for good, whoever holds the interpreter's lock."""

from __future__ import annotations

import subprocess
import sys

import pytest

STUCK = """
import ctypes, sys
from shoal.machine.last_exit import ending_anyway
library = getattr(ctypes, sys.argv[1])(None)
with ending_anyway(0.2, 143, "It doesn't end; 100 % is saved."):
    while True:
        library.sleep(1000)
"""


def ended(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stderr


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])  # the second holds the interpreter's lock
def test_compiled_code_that_never_ends_does_not_hold_the_process(library: str) -> None:
    assert ended("-c", STUCK, library) == (143, "It doesn't end; 100 % is saved.\n")


def test_without_such_timers_a_thread_does_it() -> None:
    without = STUCK.replace("library =", "from shoal.machine import last_exit; last_exit.SIGEV_THREAD = 99\nlibrary =")
    assert ended("-c", without, "CDLL") == (143, "It doesn't end; 100 % is saved.\n")


IN_TIME = """
import select, sys
from shoal.machine import last_exit
last_exit.SIGEV_THREAD, last_exit.WORDS_FIRST_S = int(sys.argv[1]), 0.1
with last_exit.ending_anyway(0.1, 3, "It is late."):
    pass
select.select([], [], [], 0.5)  # past both timers
print("went on", file=sys.stderr)
"""


@pytest.mark.parametrize("notify", ["2", "99"])
def test_nothing_comes_after_what_has_ended_in_time(notify: str) -> None:
    assert ended("-c", IN_TIME, notify) == (0, "went on\n")
