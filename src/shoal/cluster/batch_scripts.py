"""The batch script of a job, for each scheduler: short, readable, and complete without shoal on the login node."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from shoal.cluster.exits import RESUME_ME
from shoal.cluster.jobs import Job
from shoal.errors import ConfigError

REQUEUES = ".requeues-"
"""Between a log's name and the job's id: the file that counts requeues where nobody else does, by ids."""

MARK = "# Written by `shoal submit`"
"""How a script that may be replaced is known."""

_COUNT = f'"$log{REQUEUES}$job_id"'
_COUNTED = f"$(touch {_COUNT} && grep -c '^[0-9]' {_COUNT})"
_OPERATORS_ONLY = "requeues a job for its operators only, so this one submits its script anew"


@dataclass(frozen=True)
class Dialect:
    """What differs between schedulers; `@LOG@` stands for the log's path in the shell."""

    title: str
    word: str  # in front of a directive
    submit: str  # how a person submits the script
    directives: Callable[[Job], list[str]]
    opening: str  # what the shell does first: it sets `job_id` to the id that stays the same over all requeues
    requeues: str  # how this scheduler's jobs go back into the queue, as the middle of a sentence
    again: str  # the command that does it and ends the shell
    requeue_count: str = _COUNTED
    requeue_code: int | None = None  # an exit code that alone makes the scheduler requeue a job
    warns: bool = False  # whether it signals the batch shell, and nobody else, before the walltime ends
    warnings: str = "USR1"  # signals that mean: the walltime ends soon
    stops: str = "TERM INT"  # signals that mean: cancelled
    refused: Mapping[str, str] = field(default_factory=dict)  # keys that it cannot be told, and what to do instead
    variables: str | None = None  # the directive for variables, which a resubmission needs for itself


def batch_script(job: Job, scheduler: str, programs: Path, folder: Path) -> str:
    """The script; `programs` has the shoal that writes it, `folder` and the job's id name the folder of its cluster."""
    dialect = DIALECTS[scheduler]
    problems = _problems(job, scheduler, dialect)
    if problems:
        raise ConfigError(problems)
    log = job.log.replace("%j", "$job_id")
    directives = [*dialect.directives(job), *job.extra_directives]
    parts = [
        ["#!/bin/bash", *(f"{dialect.word} {directive}" for directive in directives)],
        [f"{MARK}; `{dialect.submit}` submits it as well, also where there is no shoal."],
        [dialect.opening.replace("@LOG@", log if log.startswith("/") else f"$PWD/{log}")],
        ["# The preamble of the job's description.", *job.preamble] if job.preamble else [],
        _environment(job, programs),
        _launch(job, dialect, folder),
        _wait(dialect),
        _end(job, scheduler, dialect),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _problems(job: Job, scheduler: str, dialect: Dialect) -> list[str]:
    """What this scheduler cannot be told."""
    found = [f"{key}: {why}" for key, why in dialect.refused.items() if getattr(job, key) not in (None, 0)]
    if scheduler == "sge" and job.parallel_environment is None:
        found.append("parallel_environment: is missing; Grid Engine needs one, and `qconf -spl` lists this site's")
    if dialect.variables is not None:
        found += [
            f"extra_directives: {line!r} would be lost when the job is requeued; write its variables under env"
            for line in job.extra_directives
            if line.split()[0].partition("=")[0] == dialect.variables
        ]
    return found


def _environment(job: Job, programs: Path) -> list[str]:
    """Which shoal and python are used: those of the preamble if there is one, else those that wrote the script."""
    folder = shlex.quote(str(programs))
    if job.preamble:
        lines = [
            "# Where the preamble brings no shoal, the one that wrote this script is used.",
            f'PATH="$PATH":{folder}',
        ]
    else:
        lines = ["# The shoal and the python that wrote this script come first.", f'PATH={folder}:"$PATH"']
    return [*lines, "export PATH", *(f"export {name}={shlex.quote(value)}" for name, value in job.env.items())]


def _launch(job: Job, dialect: Dialect, folder: Path) -> list[str]:
    options = f'--job-dir {shlex.quote(str(folder))}-"$job_id"'
    for name in ("min_nodes", "ports", "on_node_loss"):
        if getattr(job, name) is not None:
            options += f" --{name.replace('_', '-')} {getattr(job, name)}"
    lines = [
        "# `shoal launch` starts Ray on all nodes, runs the command on the first, and ends with its exit code.",
        "# Its process group is its own (set -m): what a scheduler tells this shell's group, it hears from this shell.",
        "set +e -m",
        f"shoal launch {options} \\",
        f"  -- {shlex.join(job.command)} </dev/null &",
        "launch=$!",
    ]
    if not dialect.warns:
        lines += [
            f"# {dialect.title} does not warn this shell alone before the walltime ends, so it warns itself.",
            f"(sleep $(({job.walltime - job.signal_before} - SECONDS)); kill -USR1 $$) </dev/null >/dev/null 2>&1 &",
            "timer=$!",
            'disown "$timer"',
        ]
    return [*lines, "set +m"]


def _wait(dialect: Dialect) -> list[str]:
    return [
        f"# The walltime ends soon: save, and end with {RESUME_ME}. Cancelled: save, and end.",
        f"""trap 'told=yes; kill -USR1 "$launch" 2>/dev/null' {dialect.warnings}""",
        f"""trap 'told=yes; stopped=yes; trap "" {dialect.stops}; kill -TERM "$launch" 2>/dev/null' {dialect.stops}""",
        "told=yes stopped=",
        'while [ -n "$told" ]; do # a signal ends `wait` before the command has ended',
        "  told=",
        '  wait "$launch"',
        "  code=$?",
        "done",
        *([] if dialect.warns else ['kill -- "-$timer" 2>/dev/null']),
    ]


def _end(job: Job, scheduler: str, dialect: Dialect) -> list[str]:
    lines = []
    if job.requeue:
        lines += [
            f"# {RESUME_ME}: saved, resume me. {dialect.title} {dialect.requeues}, at most {job.max_requeues} times.",
            f'if [ "$code" -eq {RESUME_ME} ]; then',
            f'  if [ -z "$stopped" ] && [ "{dialect.requeue_count}" -lt {job.max_requeues} ]; then',
            f"    {dialect.again}",
            "  fi",
            '  echo "The run is saved, but the job is not requeued; submit it once more to go on." >&2',
            "fi",
        ]
    # Grid Engine gives that code its meaning in every job, LSF only where a job asks for it.
    if dialect.requeue_code is not None and (job.requeue or scheduler == "sge"):
        lines.append(f'[ "$code" -ne {dialect.requeue_code} ] || code=1 # else {dialect.title} would requeue the job')
    return [*lines, 'exit "$code"']


def _slurm(job: Job) -> list[str]:
    return [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *_given("--cpus-per-task={}", job.cpus_per_node),
        *_given("--gpus-per-node={}", job.gpus_per_node),
        *_given("--mem={}", _memory(job, "M", "G")),
        f"--time={_clock(job.walltime)}",
        *_given("--account={}", job.account),
        *_given("--partition={}", job.partition),
        f"--output={job.log}",
        "--open-mode=append",
        f"--signal=B:USR1@{job.signal_before}",
        "--requeue" if job.requeue else "--no-requeue",
    ]


def _pbs(job: Job) -> list[str]:
    chunk = [
        f"select={job.nodes}",
        *_given("ncpus={}", job.cpus_per_node),
        *_given("ngpus={}", job.gpus_per_node),
        *_given("mem={}", _memory(job, "mb", "gb")),
    ]
    return [
        f"-N {job.name}",
        f"-l {':'.join(chunk)}",
        "-l place=scatter",  # each chunk on a node of its own
        f"-l walltime={_clock(job.walltime)}",
        *_given("-A {}", job.account),
        *_given("-q {}", job.partition),
        "-j oe",
        f"-r {'y' if job.requeue else 'n'}",
    ]


def _lsf(job: Job) -> list[str]:
    # Only LSF with IBM's Cluster Systems Manager counts nodes; everywhere else it counts cores.
    cores = job.cpus_per_node
    spread = [f"-nnodes {job.nodes}"] if cores is None else [f"-n {job.nodes * cores}", f'-R "span[ptile={cores}]"']
    return [
        f"-J {job.name}",
        *spread,
        *_given('-gpu "num={}"', job.gpus_per_node),
        *_given('-R "rusage[mem={}]"', _memory(job, "MB", "GB")),
        f"-W {math.ceil(job.walltime / 60)}",
        *_given("-P {}", job.account),
        *_given("-q {}", job.partition),
        f"-o {job.log.replace('%j', '%J')}",
        *(["-r", "-Q 99"] if job.requeue else ["-rn"]),
    ]


def _cobalt(job: Job) -> list[str]:
    return [
        f"--jobname {job.name}",
        f"-n {job.nodes}",
        f"-t {math.ceil(job.walltime / 60)}",
        *_given("-A {}", job.account),
        *_given("-q {}", job.partition),
    ]


def _sge(job: Job) -> list[str]:
    return [
        "-S /bin/bash",
        f"-N {job.name}",
        "-cwd",
        f"-pe {job.parallel_environment} {job.nodes * (job.cpus_per_node or 1)}",
        f"-l h_rt={_clock(job.walltime)}",
        *_given("-P {}", job.account),
        *_given("-q {}", job.partition),
        "-j y",
        f"-o {job.log.replace('%j', '$JOB_ID')}",
        "-notify",  # USR2 a while before the end of a deleted job
        f"-r {'y' if job.requeue else 'n'}",
    ]


def _given(form: str, value: object) -> list[str]:
    """The directive, if there is something to say."""
    return [] if value in (None, 0) else [form.format(value)]


def _memory(job: Job, mega: str, giga: str) -> str | None:
    if job.memory_per_node is None:
        return None
    whole, rest = divmod(job.memory_per_node, 1024)
    return f"{job.memory_per_node}{mega}" if rest else f"{whole}{giga}"


def _clock(length_s: int) -> str:
    minutes, secs = divmod(length_s, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{secs:02}"


_OWN_LOG = 'log=@LOG@\nexec >>"$log" 2>&1'
_NO_PE = {"parallel_environment": "only Grid Engine has them; leave it out"}
_SITE_OWN = "Grid Engine's name for it is another at every site; write the site's into extra_directives, as"
_WHOLE_NODES = "Cobalt gives whole nodes; leave it out"

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        "slurm": Dialect(
            title="Slurm",
            word="#SBATCH",
            submit="sbatch job.sh",
            directives=_slurm,
            opening="job_id=$SLURM_JOB_ID",
            warns=True,
            requeues="puts the same job back into its queue",
            requeue_count="${SLURM_RESTART_COUNT:-0}",
            again='scontrol requeue "$SLURM_JOB_ID" && exit 0',
            refused=_NO_PE,
        ),
        "pbs": Dialect(
            title="PBS",
            word="#PBS",
            submit="qsub job.sh",
            directives=_pbs,
            opening=(
                "# PBS keeps the output until the job has ended, so this shell writes the log itself.\n"
                'cd "$PBS_O_WORKDIR" || exit\n'
                f"job_id=${{SHOAL_FIRST_JOB:-${{PBS_JOBID%%.*}}}}\n{_OWN_LOG}"
            ),
            requeues=_OPERATORS_ONLY,
            again=(f'cd "$PBS_O_WORKDIR" && qsub -v SHOAL_FIRST_JOB="$job_id" "$0" >>{_COUNT} && exit 0'),
            refused=_NO_PE,
            variables="-v",
        ),
        "lsf": Dialect(
            title="LSF",
            word="#BSUB",
            submit="bsub < job.sh",
            directives=_lsf,
            opening=(
                "# LSF keeps the output until the job has ended, so this shell writes the log itself.\n"
                f"job_id=$LSB_JOBID\n{_OWN_LOG}"
            ),
            requeues="requeues a job that ends with 99 (-Q)",
            again=f'echo "$job_id" >>{_COUNT} && exit 99',
            requeue_code=99,
            warnings="USR1 USR2",  # USR2: the run limit is reached, ten minutes are left
            refused=_NO_PE,
        ),
        "cobalt": Dialect(
            title="Cobalt",
            word="#COBALT",
            submit="qsub job.sh",
            directives=_cobalt,
            opening=(
                "# One log for output and errors, to which a requeued job adds.\n"
                f"job_id=${{SHOAL_FIRST_JOB:-$COBALT_JOBID}}\nsubmitted_from=$PWD\n{_OWN_LOG}"
            ),
            requeues=_OPERATORS_ONLY,
            again=(f'cd "$submitted_from" && qsub --env SHOAL_FIRST_JOB="$job_id" "$0" >>{_COUNT} && exit 0'),
            refused={
                **_NO_PE,
                "cpus_per_node": _WHOLE_NODES,
                "gpus_per_node": _WHOLE_NODES,
                "memory_per_node": _WHOLE_NODES,
            },
            variables="--env",
        ),
        "sge": Dialect(
            title="Grid Engine",
            word="#$",
            submit="qsub job.sh",
            directives=_sge,
            opening="job_id=$JOB_ID\nlog=@LOG@",
            requeues="requeues a job that ends with 99",
            again=f'echo "$job_id" >>{_COUNT} && exit 99',
            requeue_code=99,
            stops="TERM INT USR2",  # USR2 is what -notify announces the end by
            refused={
                "gpus_per_node": f'{_SITE_OWN} "-l gpu=1"',
                "memory_per_node": f'{_SITE_OWN} "-l mem_free=4G", which is for each slot',
            },
        ),
    }
)
"""Every scheduler that a script can be written for."""
