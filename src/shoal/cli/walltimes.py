"""`--walltime`, and when this process will be ended: by the user's word, by the scheduler, or by `shoal launch`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from shoal.machine.deadlines import Deadline

T = TypeVar("T", bound=Callable[..., Any])


def walltime_option(function: T) -> T:
    """`--walltime TIME`, for commands that train."""
    text = 'Save and end with exit code 85 before this time is over, such as "2h"; in a job, its scheduler tells.'
    return click.option("--walltime", metavar="TIME", help=text)(function)


def deadline_of(walltime: str | None) -> Deadline | None:
    """When this process will be ended, the earliest that anybody tells; None: nobody does."""
    from shoal.cli.launch import seconds_of
    from shoal.cluster.walltimes import job_deadline
    from shoal.errors import ClusterError, ConfigError
    from shoal.machine.deadlines import Deadline, earlier, told_deadline

    own = None
    if walltime is not None:
        length = seconds_of("--walltime", walltime)
        if length <= 0:
            raise ConfigError(f"--walltime: must be more than 0 (got {walltime!r})")
        own = Deadline(time.time() + length, f"--walltime {walltime}")
    try:
        of_job = job_deadline(os.environ)
    except ClusterError:  # a scheduler that a package adds, and that cannot be loaded
        of_job = None
    return earlier(own, of_job or told_deadline())
