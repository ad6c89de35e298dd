"""The schedulers' own commands: submit, ask and cancel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shoal.cluster.scheduler import Commands
from shoal.cluster.scheduler_programs import run
from shoal.cluster.schedulers import scheduler_called
from shoal.errors import ClusterError

# What schedulers say of jobs that they have forgotten, which is an answer and not a failure.
_FORGOTTEN = re.compile(r"unknown job|job .*not found|invalid job id|has finished|no .*job found", re.IGNORECASE)


def submit(scheduler: str, script: Path, folder: Path) -> str:
    """Submit a script from a folder; what the scheduler answers."""
    commands = scheduler_called(scheduler).commands
    words = [*commands.submit] if commands.from_stdin else [*commands.submit, str(script)]
    done = run(words, cwd=folder, stdin=script if commands.from_stdin else None)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise ClusterError(f"{words[0]} refused the job: {said}")
    return done.stdout


def job_id_in(scheduler: str, answer: str) -> str:
    """The job's id in what the scheduler has answered to a submission."""
    commands = scheduler_called(scheduler).commands
    found = re.findall(commands.job_id, answer, re.MULTILINE)
    if not found:
        program = commands.submit[0]
        raise ClusterError(f"the job is submitted, but {program} printed no id: {answer.strip()!r}; look for its name")
    return str(found[-1])


def states(scheduler: str, ids: Sequence[str], past: bool = True) -> dict[str, str]:
    """The present states of jobs in the scheduler's own words; without `past` it may know only those not over."""
    commands = scheduler_called(scheduler).commands
    found: dict[str, str] = {}
    for question in commands.questions if past else commands.questions[:1]:
        unknown = [job_id for job_id in ids if job_id not in found]
        if not unknown:
            break
        answers = _ask(question(unknown), commands, required=not found and question is commands.questions[0])
        found |= {job_id: answers[number(job_id)] for job_id in unknown if number(job_id) in answers}
    return found


def is_over(scheduler: str, state: str | None) -> bool:
    """Whether a job in this state, or in none that the scheduler lists, has ended."""
    return state is None or state in scheduler_called(scheduler).commands.ended


def cancel(scheduler: str, job_id: str) -> None:
    """Cancel a job."""
    words = [scheduler_called(scheduler).commands.cancel, job_id]
    done = run(words)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise ClusterError(f"{words[0]} did not cancel job {job_id}: {said}")


def number(job_id: str) -> str:
    """A job's id without the name of PBS's server."""
    return job_id.partition(".")[0]


def _ask(words: list[str], commands: Commands, required: bool) -> dict[str, str]:
    """What a question's command answers, by number; past jobs may be nobody's business to keep."""
    try:
        done = run(words)
    except ClusterError:
        if required:
            raise
        return {}
    answers = dict(re.findall(commands.answer, done.stdout, re.MULTILINE))
    said = done.stderr.strip()
    if required and not answers and done.returncode != 0 and said and not _FORGOTTEN.search(said):
        raise ClusterError(f"{words[0]} cannot report jobs: {said}")
    return answers
