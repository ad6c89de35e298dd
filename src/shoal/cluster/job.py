"""A batch job: what a user may say about it, key by key."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, WithJsonSchema

from shoal.cluster import ports
from shoal.config.durations import EXAMPLES, seconds
from shoal.config.fields import Count, Flag, Size, Text
from shoal.config.problems import printable
from shoal.errors import ConfigError

_SHELL_ONLY = re.compile(r"[$`|&;<>()\n]")


def length_of_time(value: Any) -> int:
    """A length of time in whole seconds, rounded up."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"must have a unit, such as {EXAMPLES}")
    if not isinstance(value, str):
        raise ValueError(f"must be a length of time such as {EXAMPLES}")
    length = math.ceil(seconds(value))
    if length == 0:
        raise ValueError("must be more than 0")
    return length


def memory_mb(value: Any) -> int:
    """Memory in megabytes (of 1024 * 1024 bytes, as every scheduler counts)."""
    match = re.fullmatch(r"(\d{1,9})\s?(MB|GB|TB)", value, re.IGNORECASE | re.ASCII) if isinstance(value, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError('must be memory with its unit, such as "64GB" or "512MB"')
    return int(match[1]) * {"MB": 1, "GB": 1024, "TB": 1024**2}[match[2].upper()]


def job_name(value: str) -> str:
    """Refuse a name that some scheduler refuses."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,62}", value):
        raise ValueError("must be a letter followed by at most 62 letters, digits, dots, dashes or _")
    return value


def word(value: str) -> str:
    """Refuse what a scheduler would take for more than one word of a directive."""
    if not re.fullmatch(r"[\w.,:@+/=][\w.,:@+/=-]*", value, re.ASCII):
        raise ValueError("must be one word of letters, digits and . , : @ + / = _ -")
    return value


def log_file(value: str) -> str:
    """The path of a log, with `~` expanded; `%j` in it stands for the job's id."""
    path = os.path.expanduser(value)
    if not re.fullmatch(r"(?:[\w.,+@=/-]|%j)+", path, re.ASCII) or path.startswith("-") or path.endswith("/"):
        raise ValueError(
            "must be a file name of letters, digits and . , + @ = / _ -, in which %j is replaced by the job's id"
        )
    return path


def shell_lines(value: Any) -> tuple[str, ...]:
    """Lines of shell, given as a list or as one text."""
    lines = value.splitlines() if isinstance(value, str) else value
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise ValueError("must be a list of shell lines, or one text")
    for line in lines:
        if not line.replace("\t", " ").isprintable():
            raise ValueError(f"a line has a character that does not print: {printable(line)}")
    return tuple(line.rstrip() for line in lines)


def directive_lines(value: Any) -> tuple[str, ...]:
    """What stands after the scheduler's directive word, each on a line of its own."""
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of directives, such as ["--constraint=haswell"]')
    for line in value:
        if not isinstance(line, str) or not line.strip() or not line.isprintable():
            raise ValueError(f"each must be one line of printable text, unlike {printable(str(line))!r}")
        if line.lstrip().startswith("#"):
            raise ValueError(f"leave the directive word out, as in --constraint=haswell, unlike {line!r}")
    return tuple(line.strip() for line in value)


def bind_paths(value: Any) -> tuple[str, ...]:
    """Folders of the host, or HOST:INSIDE, in which `$NAME` is the job's own variable."""
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of folders, such as ["/scratch"]')
    for path in value:
        if not isinstance(path, str) or not re.fullmatch(r"[\w./:$@+,=~-]+", path, re.ASCII):
            raise ValueError(f"each must be a folder of letters, digits and . / : $ @ + , = _ -, unlike {path!r}")
    return tuple(value)


def variable_values(value: Any) -> dict[str, str]:
    """Environment variables; numbers become text, true and false are the user's to spell."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to values")
    found = {}
    for name, content in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{printable(str(name))} is not the name of a variable")
        if isinstance(content, bool) or not isinstance(content, str | int | float):
            raise ValueError(f"{name} must be text or a number; put it in quotes")
        if not str(content).isprintable():
            raise ValueError(f"{name} must be one line of printable text")
        found[name] = str(content)
    return found


def command_words(value: Any) -> tuple[str, ...]:
    """A command as its words, or as one text that is split as a shell splits words."""
    problem = "must be a list of words, such as [shoal, train, -f, my.yml], or one text"
    words: Sequence[Any] = ()
    if isinstance(value, str):
        if _SHELL_ONLY.search(value):
            raise ValueError('is not read by a shell, so $ | & ; < > ( ) mean nothing; use [bash, -c, "..."] for them')
        try:
            words = shlex.split(value)
        except ValueError:
            raise ValueError("has a quote that is not closed") from None
    elif isinstance(value, list | tuple):
        # YAML makes numbers of `--num-workers, 3`; the shell on the command line never does.
        words = [str(part) if isinstance(part, int | float) and not isinstance(part, bool) else part for part in value]
    if not words or not all(isinstance(part, str) and "\0" not in part for part in words) or not words[0].strip():
        raise ValueError(problem)
    return tuple(words)


def open_ports(value: Any) -> str:
    """`30000-30999`."""
    try:
        return str(ports.port_range(value if isinstance(value, str) else ""))
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("--ports: ").partition(" (got")[0]) from None


_TEXT = WithJsonSchema({"type": "string"})
_LINES = WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})
Duration = Annotated[int, PlainValidator(length_of_time), _TEXT]
Word = Annotated[Text, AfterValidator(word)]


class Job(BaseModel):
    """One batch job as the user describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: Annotated[Text, AfterValidator(job_name)] = "shoal"
    """The job's name in the queue, and the first part of its log's name."""
    nodes: Size = 1
    """Machines."""
    walltime: Duration
    """Time limit of the job, such as "20m" or "02:30:00", at which the scheduler ends it."""
    account: Word | None = None
    """Account or project to charge: Slurm's account, the project of PBS, LSF, Cobalt and Grid Engine."""
    partition: Word | None = None
    """Slurm's partition, the queue of PBS, LSF, Cobalt and Grid Engine; null: the site's default."""
    cpus_per_node: Size | None = None
    """Number of cores on each node; null: the site's default, which on shared nodes is one."""
    gpus_per_node: Count | None = None
    """Number of GPUs on each node."""
    memory_per_node: Annotated[int, PlainValidator(memory_mb), _TEXT] | None = None
    """Memory on each node, such as "64GB"."""
    scheduler: Text = "auto"
    """Scheduler: slurm, lsf, cobalt, pbs, sge, or one that a package adds; auto: the one of this machine."""
    parallel_environment: Word | None = None
    """Parallel environment, which Grid Engine alone requires; `qconf -spl` lists those of the site."""
    extra_directives: Annotated[tuple[str, ...], PlainValidator(directive_lines), _LINES] = ()
    """Other directives for the scheduler, without the leading word of the line: ["--constraint=haswell"]."""
    preamble: Annotated[tuple[str, ...], PlainValidator(shell_lines), _LINES] = ()
    """Shell lines before the command: modules, conda, a virtual environment; the job ends if one of them fails."""
    login_shell: Flag = True
    """Whether the script runs in a login shell, in which `module` and `conda activate` exist."""
    variables: Annotated[dict[str, str], PlainValidator(variable_values), WithJsonSchema({"type": "object"})] = {}
    """Variables to export after the preamble."""
    command: Annotated[tuple[str, ...], PlainValidator(command_words), _LINES]
    """The command to run on the first node, with a Ray cluster on all of them; on the command line it follows `--`."""
    container: Text | None = None
    """Image in which shoal runs on every node: a .sif file, an address (docker://...), or an image's name; null: none.

    The nodes need no shoal then; the image has it (docs/containers.md)."""
    container_runtime: Literal["auto", "apptainer", "podman-hpc", "shifter"] = "auto"
    """What runs the image; auto: apptainer (or singularity) for files and addresses, else what this machine has."""
    container_binds: Annotated[tuple[str, ...], PlainValidator(bind_paths), _LINES] = ()
    """More folders that the container sees, such as [/scratch, $SCRATCH, /data:/input].

    The working folder and the job's folder are always there, and with Apptainer and podman-hpc the home folder."""
    output: Annotated[Text, AfterValidator(log_file)] | None = None
    """Log of the job, in which %j is replaced by its id; null: NAME-%j.log in the folder it is submitted from."""
    signal_before: Duration = 120
    """How long before the end of the walltime the command gets a signal to save, such as "2m"."""
    requeue: Flag = True
    """Whether a job that ends with exit code 85 (saved, resume me) goes back into the queue automatically."""
    max_requeues: Size = 20
    """Maximum number of requeues."""
    min_nodes: Size | None = None
    """Number of nodes that are enough to start the command if others fail to come up; null: all."""
    ports: Annotated[str, PlainValidator(open_ports), _TEXT] | None = None
    """The ports that this site's firewall leaves open between nodes, as 30000-30999; null: any."""
    on_node_loss: Literal["continue", "stop"] = "continue"
    """What to do when a node dies during the run."""

    @property
    def log(self) -> str:
        """The log's path, with `%j` for the job's id."""
        return self.output or f"{self.name}-%j.log"

    def conflicts(self) -> list[str]:
        """What is wrong with keys that are each right."""
        found = []
        if self.signal_before >= self.walltime:
            found.append(
                f"signal_before: {self.signal_before} s is not before the end of a walltime of {self.walltime} s; "
                f'make it shorter, as signal_before: "{max(1, self.walltime // 4)}s"'
            )
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            found.append(f"min_nodes: must be at most nodes, which is {self.nodes} (got {self.min_nodes})")
        return found
