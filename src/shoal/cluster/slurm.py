"""Slurm: sbatch, srun, squeue."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.cluster.host_lists import Host, expand
from shoal.cluster.scheduler import (
    Commands,
    Environ,
    HostVariables,
    Scheduler,
    Script,
    Start,
    WalltimeFacts,
    Words,
    clock,
    given,
    length,
    memory,
)
from shoal.cluster.scheduler_programs import run
from shoal.errors import ClusterError

if TYPE_CHECKING:
    from shoal.cluster.job import Job

# What sbatch, salloc and an outer srun leave for the next srun, and what would keep CPUs or GPUs from our step or tasks
# from their hosts: CPUs for each task imply --exact, and some cannot be together with --ntasks-per-node.
_DISTURBING = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES",
    "SLURM_STEP_GRES",
    "SLURM_TRES_BIND",
    "SLURM_TRES_PER_TASK",
    "SRUN_CPUS_PER_TASK",
)


_FAILURE = r"srun: error: (Task launch .* failed on node )?(?P<hosts>[^\s:]+): (?(1)|tasks? \d)"


def _hosts(environ: Environ) -> list[Host]:
    return [host for group in _groups(environ) for host in _hosts_of(group)]


def _groups(environ: Environ) -> list[Environ]:
    """What Slurm tells of each group of a heterogeneous job, in the variables of a plain one; else this job alone."""
    size = environ.get("SLURM_HET_SIZE", "")
    if not size.isdecimal():
        return [environ]
    groups: list[Environ] = []
    for number in range(int(size)):
        suffix = f"_HET_GROUP_{number}"
        own = {name.removesuffix(suffix): value for name, value in environ.items() if name.endswith(suffix)}
        if "SLURM_JOB_NODELIST" not in own:
            raise ClusterError(
                f"Slurm job {environ['SLURM_JOB_ID']} has {size} groups, but SLURM_JOB_NODELIST{suffix} is not set; "
                "name the hosts with --hosts."
            )
        groups.append({**own, "SLURMD_NODENAME": environ.get("SLURMD_NODENAME", "")})
    return groups


def _hosts_of(environ: Environ) -> list[Host]:
    names = expand(environ["SLURM_JOB_NODELIST"], "SLURM_JOB_NODELIST")
    cpus = _cpus(environ, names)
    everywhere = _gpus(environ.get("SLURM_GPUS_PER_NODE", ""))
    here = _gpus(environ.get("SLURM_GPUS_ON_NODE", ""))
    if here is None and environ.get("SLURM_JOB_GPUS"):
        here = len(environ["SLURM_JOB_GPUS"].split(","))
    gpus = {environ.get("SLURMD_NODENAME"): everywhere if here is None else here}
    return [Host(name, count, gpus.get(name, everywhere)) for name, count in zip(names, cpus)]


def _cpus(environ: Environ, names: Sequence[str]) -> Sequence[int | None]:
    """CPUs of each host, from `36(x2),4`."""
    text = environ.get("SLURM_JOB_CPUS_PER_NODE")
    if not text:
        return [None] * len(names)
    cpus: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", item)
        if match:
            cpus += [int(match[1])] * int(match[2] or 1)
    if len(cpus) != len(names):
        raise ClusterError(
            f"SLURM_JOB_CPUS_PER_NODE={text} does not fit the {len(names)} hosts of SLURM_JOB_NODELIST; "
            "unset SLURM_JOB_CPUS_PER_NODE, or name the hosts with --hosts."
        )
    return cpus


def _gpus(text: str) -> int | None:
    """GPUs of a node, from `4`, `a100:4` or `a100:2,v100:1`."""
    counts = [item.rpartition(":")[2] for item in text.split(",")]
    return sum(map(int, counts)) if all(count.isdecimal() for count in counts) else None


def _srun(hosts: Sequence[str], words: Words, environ: Environ) -> list[Words]:
    if not environ.get("SLURM_HET_SIZE"):
        return [_step(hosts, words, environ)]
    # A step of several groups has the same number of tasks in each of them; so each group has one of its own.
    steps = []
    for number, group in enumerate(_groups(environ)):
        names = {host.name for host in _hosts_of(group)}
        if own := [host for host in hosts if host in names]:
            steps.append(_step(own, words, environ, f"--het-group={number}"))
    return steps


def _step(hosts: Sequence[str], words: Words, environ: Environ, *more: str) -> Words:
    return [
        *_without(_DISTURBING, environ),
        "srun",
        *more,
        f"--nodes={len(hosts)}",
        f"--ntasks={len(hosts)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(hosts)}",
        # The step has all that the job has, and shares it with the steps of an interactive shell and of the user.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        # An agent's end is told by the agents; it must not end the others.
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--export=ALL",
        "--mpi=none",
        *words,
    ]


def _without(variables: Sequence[str], environ: Environ) -> Words:
    found = [variable for variable in variables if variable in environ]
    return ["env", *(word for variable in found for word in ("-u", variable))] if found else []


def _directives(job: Job) -> list[str]:
    return [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *given("--cpus-per-task={}", job.cpus_per_node),
        *given("--gpus-per-node={}", job.gpus_per_node),
        *given("--mem={}", memory(job, "M", "G")),
        f"--time={clock(job.walltime)}",
        *given("--account={}", job.account),
        *given("--partition={}", job.partition),
        f"--output={job.log}",
        "--open-mode=append",
        f"--signal=B:USR1@{job.signal_before}",
        "--requeue" if job.requeue else "--no-requeue",
        # Else Slurm ends the whole job when it has not heard of one of its nodes for a while.
        *(["--no-kill"] if job.nodes > 1 and job.on_node_loss == "continue" else []),
    ]


def _node_loss_warning(environ: Environ) -> str | None:
    """What to tell the user of a job that Slurm ends as a whole when it loses a node, as far as its script shows."""
    if environ.get("SBATCH_NO_KILL") is not None:
        return None
    try:
        done = run(["scontrol", "write", "batch_script", environ["SLURM_JOB_ID"], "-"], timeout_s=10)
    except ClusterError:
        return None
    is_script = done.returncode == 0 and done.stdout.startswith("#!")  # there is none after salloc
    if not is_script or re.search(r"^#SBATCH\s(.*\s)?(--no-kill\b|-k\b)", done.stdout, re.MULTILINE):
        return None
    return (
        "the script of this job has no `#SBATCH --no-kill`; unless sbatch was given that option, Slurm ends the whole "
        "job some minutes after it loses a node"
    )


def _end(answers: str, now: float) -> float | None:
    """By what is left of the limit, which Slurm counts in minutes, and by the end, which it keeps to the second."""
    left_text, _, end_text = answers.strip().partition(" ")
    left = length(left_text)  # nothing for UNLIMITED, of which the end is a year away
    if left is None:
        return None
    with suppress(ValueError, OverflowError):  # of a user who has another SLURM_TIME_FORMAT
        return min(now + left, time.mktime(time.strptime(end_text.strip(), "%Y-%m-%dT%H:%M:%S")))
    return now + left


SLURM = Scheduler(
    name="slurm",
    title="Slurm",
    job_variable="SLURM_JOB_ID",
    part_variables=("SLURM_RESTART_COUNT",),
    host_variables=(HostVariables(("SLURM_JOB_NODELIST",), _hosts),),
    starts=(
        Start("srun", _srun, r"srun: error: (Task launch .* failed on node )?(?P<hosts>[^\s:]+): (?(1)|tasks? \d)"),
    ),
    node_loss_warning=_node_loss_warning,
    walltime=WalltimeFacts(
        end_variable="SLURM_JOB_END_TIME",  # since Slurm 22.05
        questions=(lambda job_id: ["squeue", "--noheader", f"--jobs={job_id}", "--format=%L %e"],),
        end=_end,
    ),
    script=Script(
        word="#SBATCH",
        submit="sbatch job.sh",
        directives=_directives,
        opening="job_id=$SLURM_JOB_ID",
        warns=True,
        requeues="puts the same job back into its queue",
        requeue_count="${SLURM_RESTART_COUNT:-0}",
        again='scontrol requeue "$SLURM_JOB_ID" && exit 0',
        every_node=(
            "srun --nodes=@NODES@ --ntasks=@NODES@ --ntasks-per-node=1 --overlap --mem=0 --cpu-bind=none --no-kill "
            "--kill-on-bad-exit=0 --wait=0 --mpi=none"
        ),
    ),
    commands=Commands(
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
)
