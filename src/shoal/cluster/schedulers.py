"""The schedulers' own commands: which one this machine has, and how to submit, ask and cancel."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from shoal.errors import ClusterError

Question = Callable[[Sequence[str]], list[str]]
"""The command that asks about jobs, from their ids."""

# What schedulers say of jobs that they have forgotten, which is an answer and not a failure.
_FORGOTTEN = re.compile(r"unknown job|job .*not found|invalid job id|has finished|no .*job found", re.IGNORECASE)


@dataclass(frozen=True)
class Commands:
    """How to speak with one scheduler."""

    submit: tuple[str, ...]  # the script's path comes after it
    job_id: str  # where its answer has the id
    cancel: str
    questions: tuple[Question, ...]  # the first knows of jobs that wait or run, the later ones of past jobs
    answer: str  # each job's number and state in what they print
    ended: frozenset[str] = frozenset()  # states in which a job is over; others are no longer listed then
    from_stdin: bool = False  # whether the script goes to the command's standard input instead


COMMANDS: Mapping[str, Commands] = MappingProxyType(
    {
        "slurm": Commands(
            submit=("sbatch", "--parsable"),
            job_id=r"^(\d+)(?:;|$)",
            cancel="scancel",
            questions=(
                lambda ids: ["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T"],
                lambda ids: [
                    *("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State"),
                    f"--jobs={','.join(ids)}",
                ],
            ),
            answer=r"^(\d+)\|(\w+)",
            ended=frozenset(
                ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE")
            ),
        ),
        "pbs": Commands(
            submit=("qsub",),
            job_id=r"^(\d+[^\s\[]*)$",
            cancel="qdel",
            questions=(lambda ids: ["qstat", "-f", *ids], lambda ids: ["qstat", "-f", "-x", *ids]),
            answer=r"^Job Id:\s*(\d+)(?:.*\n)+?\s*job_state = (\w)",
            ended=frozenset(("F", "X", "C")),
        ),
        "lsf": Commands(
            submit=("bsub",),
            job_id=r"^Job <(\d+)>",
            cancel="bkill",
            questions=(lambda ids: ["bjobs", "-a", "-noheader", "-o", "jobid stat", *ids],),
            answer=r"^(\d+)\s+(\w+)",
            ended=frozenset(("DONE", "EXIT")),
            from_stdin=True,
        ),
        "cobalt": Commands(
            submit=("qsub",),
            job_id=r"^(\d+)$",
            cancel="qdel",
            questions=(lambda ids: ["qstat", "--header", "JobID:State", *ids],),
            answer=r"^\s*(\d+)\s+(\w+)",
        ),
        "sge": Commands(
            submit=("qsub", "-terse"),
            job_id=r"^(\d+)$",
            cancel="qdel",
            questions=(lambda ids: ["qstat", "-u", getpass.getuser()],),
            answer=r"^\s*(\d+)\s+\S+\s+\S+\s+\S+\s+(\w+)",
        ),
    }
)
"""Every scheduler, by the name that `--scheduler` takes."""


def find_scheduler(environ: Mapping[str, str]) -> str:
    """The scheduler of this machine, by the commands on PATH."""

    def has(program: str) -> bool:
        return shutil.which(program, path=environ.get("PATH", "")) is not None

    # Slurm and LSF sites often have a qsub too, which translates.
    if has("sbatch"):
        return "slurm"
    if has("bsub"):
        return "lsf"
    if has("qsub"):
        return _whose_qsub(environ)
    raise ClusterError(
        "no scheduler is here: neither sbatch (Slurm) nor bsub (LSF) nor qsub (PBS, Cobalt, Grid Engine) is on PATH, "
        "so load its module, or say whose script you want with --scheduler and --dry-run"
    )


def submit(scheduler: str, script: Path, folder: Path) -> str:
    """Submit a script from a folder; what the scheduler answers."""
    commands = COMMANDS[scheduler]
    words = [*commands.submit] if commands.from_stdin else [*commands.submit, str(script)]
    done = _run(words, cwd=folder, stdin=script if commands.from_stdin else None)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise ClusterError(f"{words[0]} refused the job: {said}")
    return done.stdout


def job_id_in(scheduler: str, answer: str) -> str:
    """The job's id in what the scheduler has answered to a submission."""
    commands = COMMANDS[scheduler]
    found = re.findall(commands.job_id, answer, re.MULTILINE)
    if not found:
        program = commands.submit[0]
        raise ClusterError(f"the job is submitted, but {program} gave no id: {answer.strip()!r}; look for its name")
    return str(found[-1])


def states(scheduler: str, ids: Sequence[str], past: bool = True) -> dict[str, str]:
    """The present states of jobs in the scheduler's own words; without `past` it may know only those not over."""
    commands = COMMANDS[scheduler]
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
    return state is None or state in COMMANDS[scheduler].ended


def cancel(scheduler: str, job_id: str) -> None:
    """Cancel a job."""
    words = [COMMANDS[scheduler].cancel, job_id]
    done = _run(words)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise ClusterError(f"{words[0]} did not cancel job {job_id}: {said}")


def number(job_id: str) -> str:
    """A job's id without the name of PBS's server."""
    return job_id.partition(".")[0]


def _ask(words: list[str], commands: Commands, required: bool) -> dict[str, str]:
    """What a question's command answers, by number; past jobs may be nobody's business to keep."""
    try:
        done = _run(words)
    except ClusterError:
        if required:
            raise
        return {}
    answers = dict(re.findall(commands.answer, done.stdout, re.MULTILINE))
    said = done.stderr.strip()
    if required and not answers and done.returncode != 0 and said and not _FORGOTTEN.search(said):
        raise ClusterError(f"{words[0]} cannot tell about jobs: {said}")
    return answers


def _whose_qsub(environ: Mapping[str, str]) -> str:
    if any(name.startswith("COBALT_") for name in environ):
        return "cobalt"
    if "SGE_ROOT" in environ:
        return "sge"
    if "PBS_CONF_FILE" in environ or "PBS_EXEC" in environ:
        return "pbs"
    done = _run(["qstat", "-help"])
    said = done.stdout + done.stderr
    if re.search(r"cobalt|--header", said, re.IGNORECASE):
        return "cobalt"
    return "sge" if re.search(r"GE \d|Grid Engine|-explain", said) else "pbs"


def _run(words: list[str], cwd: Path | None = None, stdin: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        with open(stdin or "/dev/null", "rb") as file:
            return subprocess.run(
                words, cwd=cwd, stdin=file, capture_output=True, text=True, errors="replace", check=False, timeout=120
            )
    except FileNotFoundError as error:
        raise ClusterError(
            f"there is no {words[0]} on PATH; load the scheduler's module, or name another with --scheduler"
        ) from error
    except PermissionError as error:
        raise ClusterError(f"{words[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{words[0]} has not answered for 120 s; ask whether the scheduler is up") from error
