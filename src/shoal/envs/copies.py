"""Copies of a process that code of the user's has made by a fork and not ended: they must not go on in our loops.

A call that forks and loses its way (an exec that fails, say) comes back twice: once here, once in a copy that holds the
same sockets, files and shared memory. Two that answer as one environment mix their data, and two that train write into
one folder. Children that the user's code keeps to itself are its own affair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

COPY_EXIT = 70  # of a copy that has come back

here = [os.getpid()]  # the pid of this process, known without a system call; of forks in C it knows nothing


def _arrive() -> None:
    here[0] = os.getpid()


os.register_at_fork(after_in_child=_arrive)


def end_copy(pid: int, call: str) -> None:
    """End this process at once if it is not the one that has made the call, which was `pid`."""
    if os.getpid() == pid:
        return
    text = (
        f"[shoal] {call} of the environment has come back in a copy of process {pid}, which its code has forked; the "
        "copy ends here. Let a child end by os._exit(), also where its exec fails, or start it by subprocess\n"
    )
    os.write(2, text.encode())
    os._exit(COPY_EXIT)


@contextmanager
def comes_back_once(call: str) -> Iterator[None]:
    """End a copy of this process in which the enclosed call returns, or raises, a second time."""
    pid = here[0]
    try:
        yield
    finally:
        end_copy(pid, call)
