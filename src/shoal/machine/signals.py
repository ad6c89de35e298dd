"""What signals mean to a job: how long one echoes, and the exit codes that follow from them."""

from __future__ import annotations

import signal

RESUME_ME = 85  # the exit code of what was saved because its walltime is near, and wants to be started again
ECHO_S = 1.0  # schedulers and launchers tell every process of a job, and some of those and batch shells pass it on


def exit_code(number: int) -> int:
    """What a program ends with after it has saved because of a signal."""
    return RESUME_ME if number == signal.SIGUSR1 else 128 + number
