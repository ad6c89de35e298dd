"""When the walltime of this job ends, by its scheduler: from its environment, or by asking its programs."""

from __future__ import annotations

import re
import time
from contextlib import suppress

from shoal.cluster.allocation import scheduler_of
from shoal.cluster.scheduler import Environ, Scheduler
from shoal.cluster.scheduler_programs import run
from shoal.errors import ClusterError
from shoal.machine.deadlines import Deadline

ANSWER_S = 20.0  # within which a scheduler that is asked for a time must answer


def job_deadline(environ: Environ) -> Deadline | None:
    """When the walltime of this process's job ends; None outside of a job, and where nobody can tell."""
    scheduler = scheduler_of(environ)
    if scheduler is None:
        return None
    job_id = environ[scheduler.job_variable]

    def ask() -> float | None:
        return asked_end(scheduler, job_id)

    at = _told(environ.get(scheduler.walltime.end_variable or ""))
    if at is None:
        at = ask()
    return None if at is None else Deadline(at, f"{scheduler.title} job {job_id}", ask)


def asked_end(scheduler: Scheduler, job_id: str) -> float | None:
    """The end of a job's walltime, in seconds since 1970, as the scheduler's own programs tell it; None: unknown."""
    answers = []
    for question in scheduler.walltime.questions:
        try:
            done = run(question(job_id), timeout_s=ANSWER_S)
        except ClusterError:  # without its programs on the nodes, nobody can tell
            return None
        if done.returncode != 0:
            return None
        answers.append(done.stdout)
    with suppress(ValueError, OverflowError):
        return scheduler.walltime.end("\n".join(answers), time.time())
    return None


def _told(text: str | None) -> float | None:
    """A time that a variable tells, if it is one of this century."""
    return float(text) if text and re.fullmatch(r"\d{9,11}", text) else None
