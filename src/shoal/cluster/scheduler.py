"""What a scheduler is to shoal: a value that says all that differs between schedulers.

Each scheduler has a file of its own with one `Scheduler` in it, and `schedulers.py` has the table of them. This file
has the types, and what those files have in common. Nobody else knows a scheduler by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.cluster.host_lists import Host
from shoal.errors import ClusterError

if TYPE_CHECKING:
    from shoal.cluster.job import Job

Environ = Mapping[str, str]
Words = list[str]

REQUEUES = ".requeues-"
"""Between a log's name and the job's id: the file that counts requeues where the scheduler does not, by ids."""

COUNT_FILE = f'"$log{REQUEUES}$job_id"'
"""That file, in the shell of a script whose `opening` has set `log` and `job_id`."""


class HostVariables(NamedTuple):
    """One of the ways in which a scheduler tells a job its hosts."""

    names: tuple[str, ...]  # set beside the job's id; the last of them has the hosts, or the path of a file with them
    hosts: Callable[[Environ], list[Host]]


class Start(NamedTuple):
    """A program that starts processes on the job's hosts."""

    program: str
    commands: Callable[[Sequence[str], Words, Environ], list[Words]]  # from hosts and the words to run on each of them
    failure: str | None = None  # a line in which it tells that a process has failed: the pattern of it, `hosts` in it


@dataclass(frozen=True)
class Script:
    """What differs in batch scripts; `@LOG@` stands for the log's path in the shell."""

    word: str  # in front of a directive
    submit: str  # how a person submits the script
    directives: Callable[[Job], list[str]]
    opening: str  # what the shell does first: it sets `job_id` to the id that stays the same over all requeues
    requeues: str  # how this scheduler's jobs go back into the queue, as the middle of a sentence
    again: str  # the command that does it and ends the shell
    requeue_count: str = f"$(touch {COUNT_FILE} && grep -c '^[0-9]' {COUNT_FILE})"
    requeue_code: int | None = None  # an exit code that alone makes the scheduler requeue a job
    requeues_unasked: bool = False  # whether that code does so in every job, and not only where a directive asks for it
    warns: bool = False  # whether it signals the batch shell, and nobody else, before the walltime ends
    warnings: str = "USR1"  # signals that mean: the walltime ends soon
    stops: str = "TERM INT"  # signals that mean: cancelled
    chooses_shell: bool = False  # whether the scheduler starts the shell by a rule of its own, not by the first line
    needed: Mapping[str, str] = field(default_factory=dict)  # keys that it must be told, and where to learn them
    refused: Mapping[str, str] = field(default_factory=dict)  # keys that it cannot be told, and what to do instead
    variables: str | None = None  # the directive for variables, which a resubmission needs for itself
    every_node: str = ""  # shell words that start a command once on each of @NODES@ nodes, for containers
    every_node_function: str = ""  # the shell function that these words call, if they do


@dataclass(frozen=True)
class Commands:
    """How to submit, ask and cancel."""

    submit: tuple[str, ...]  # the script's path comes after it
    job_id: str  # where its answer has the id
    cancel: str
    questions: tuple[Callable[[Sequence[str]], Words], ...]  # from ids; the first knows of jobs that wait or run
    answer: str  # each job's number and state in what these print
    ended: frozenset[str] = frozenset()  # states in which a job is over; others are no longer listed then
    from_stdin: bool = False  # whether the script goes to the command's standard input instead


def _unknown(_answers: str, _now: float) -> None:
    return None


@dataclass(frozen=True)
class WalltimeFacts:
    """How a running job learns when its time is over."""

    end_variable: str | None = None  # has the end in seconds since 1970
    questions: tuple[Callable[[str], Words], ...] = ()  # from the job's id; all of them are asked
    end: Callable[[str, float], float | None] = _unknown  # the end, from what these print and the time now


@dataclass(frozen=True)
class Scheduler:
    """All that shoal knows of one scheduler."""

    name: str  # as --scheduler takes it
    title: str  # as people write it
    job_variable: str  # has the job's id inside of it
    host_variables: tuple[HostVariables, ...]  # the first that are all set are believed
    starts: tuple[Start, ...]  # the first whose program is on PATH is used
    script: Script
    commands: Commands
    walltime: WalltimeFacts = WalltimeFacts()
    node_loss_warning: Callable[[Environ], str | None] = lambda environ: (
        None
    )  # of a job that ends with any of its nodes
    part_variables: tuple[str, ...] = ()  # tell jobs with the same id apart: elements of an array, restarts
    marks: tuple[str, ...] = ()  # variables that tell it from others with the same command for submitting
    help_says: str = ""  # what `qstat -help` prints here and not for the others


OWN_LOG = 'log=@LOG@\nexec >>"$log" 2>&1'
"""For an `opening`: the shell writes the log itself, where the scheduler keeps it until the end or replaces it."""

EVERY_MPI = """\
# One container on every node, by the words of this site's mpiexec: Open MPI's, or those of Hydra and PALS.
every_node() {
  case "$(mpiexec --version 2>&1)" in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) exec mpiexec -n @NODES@ --map-by ppr:1:node --bind-to none @EXPORTS@ "$@" ;;
    *) exec mpiexec -n @NODES@ --ppn 1 "$@" ;;
  esac
}"""
"""For a scheduler's `every_node`, where the site's MPI starts processes."""

SUBMITS_ANEW = "requeues a job for its operators only, so this one submits its script again"


def variable_file(environ: Environ, variable: str) -> str:
    """The text of the file that a scheduler's variable names."""
    path = environ[variable]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClusterError(
            f"{variable}={path} cannot be read ({reason}); run this on the job's first host, or use --hosts."
        ) from error


def given(form: str, value: object) -> list[str]:
    """The directive, if there is something to say."""
    return [] if value in (None, 0) else [form.format(value)]


def memory(job: Job, mega: str, giga: str) -> str | None:
    """The memory of a node with its unit, in the larger unit where it is a whole number of it."""
    if job.memory_per_node is None:
        return None
    whole, rest = divmod(job.memory_per_node, 1024)
    return f"{job.memory_per_node}{mega}" if rest else f"{whole}{giga}"


def length(text: str) -> float | None:
    """The seconds in `7200`, `02:00:00`, `30:00` or `1-02:00:00`, as schedulers print lengths; None of other words."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)(?:\.\d+)?", text.strip())
    if match is None:
        return None
    days, hours, minutes, secs = (int(group or 0) for group in match.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + secs)


def clock(length_s: int) -> str:
    """A length of time as 02:30:00."""
    minutes, secs = divmod(length_s, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{secs:02}"
