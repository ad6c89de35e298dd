"""PBS: PBS Pro, OpenPBS and Torque."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.cluster.host_lists import Host, hosts_of_lines
from shoal.cluster.scheduler import (
    COUNT_FILE,
    EVERY_MPI,
    OWN_LOG,
    SUBMITS_ANEW,
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
    variable_file,
)
from shoal.cluster.start_commands import SSH, in_this_folder

if TYPE_CHECKING:
    from shoal.cluster.job import Job


def _hosts(environ: Environ) -> list[Host]:
    # Torque writes a line for each CPU. PBS Pro writes one for each MPI process, mostly one a host, and gives NCPUS:
    # the CPUs of one chunk, or its ompthreads. The larger number is never more than what was given.
    hosts = hosts_of_lines(variable_file(environ, "PBS_NODEFILE"), f"PBS_NODEFILE={environ['PBS_NODEFILE']}")
    ncpus = environ.get("NCPUS", "")
    in_a_chunk = int(ncpus) if ncpus.isdecimal() else 1
    return [replace(host, num_cpus=max(host.num_cpus or 1, in_a_chunk)) for host in hosts]


def _pbs_tmrsh(hosts: Sequence[str], words: Words, environ: Environ) -> list[Words]:
    return [["pbs_tmrsh", host, *in_this_folder(words, environ)] for host in hosts]


def _pbsdsh(hosts: Sequence[str], words: Words, environ: Environ) -> list[Words]:
    # It knows its hosts by their lines in the node file, where each may have several.
    lines = variable_file(environ, "PBS_NODEFILE").split()
    return [["pbsdsh", "-n", str(lines.index(host)), "--", *in_this_folder(words, environ)] for host in hosts]


def _directives(job: Job) -> list[str]:
    chunk = [
        f"select={job.nodes}",
        *given("ncpus={}", job.cpus_per_node),
        *given("ngpus={}", job.gpus_per_node),
        *given("mem={}", memory(job, "mb", "gb")),
    ]
    return [
        f"-N {job.name}",
        f"-l {':'.join(chunk)}",
        "-l place=scatter",  # each chunk on a node of its own
        f"-l walltime={clock(job.walltime)}",
        *given("-A {}", job.account),
        *given("-q {}", job.partition),
        "-j oe",
        f"-r {'y' if job.requeue else 'n'}",
    ]


def _end(answers: str, now: float) -> float | None:
    """Its start, which PBS Pro calls stime and Torque start_time, or else the time that it has used, and its limit."""
    facts = dict(re.findall(r"^\s*([\w.]+) = (.+?)\s*$", answers, re.MULTILINE))
    limit = length(facts.get("Resource_List.walltime", ""))
    if limit is None:
        return None
    begun = facts.get("stime") or facts.get("start_time")
    if begun is not None:
        return time.mktime(time.strptime(begun, "%a %b %d %H:%M:%S %Y")) + limit
    used = length(facts.get("resources_used.walltime", ""))
    return None if used is None else now - used + limit


PBS = Scheduler(
    name="pbs",
    title="PBS",
    job_variable="PBS_JOBID",
    host_variables=(HostVariables(("PBS_NODEFILE",), _hosts),),
    starts=(Start("pbs_tmrsh", _pbs_tmrsh), Start("pbsdsh", _pbsdsh), SSH),
    walltime=WalltimeFacts(questions=(lambda job_id: ["qstat", "-f", job_id],), end=_end),
    script=Script(
        word="#PBS",
        submit="qsub job.sh",
        directives=_directives,
        opening=(
            "# PBS keeps the output until the job has ended, so this shell writes the log itself.\n"
            'cd "$PBS_O_WORKDIR" || exit\n'
            f"job_id=${{SHOAL_FIRST_JOB:-${{PBS_JOBID%%.*}}}}\n{OWN_LOG}"
        ),
        requeues=SUBMITS_ANEW,
        again=f'cd "$PBS_O_WORKDIR" && qsub -v SHOAL_FIRST_JOB="$job_id" "$0" >>{COUNT_FILE} && exit 0',
        every_node="every_node",
        every_node_function=EVERY_MPI,
        variables="-v",
    ),
    commands=Commands(
        submit=("qsub",),
        job_id=r"^(\d+[^\s\[]*)$",
        cancel="qdel",
        questions=(lambda ids: ["qstat", "-f", *ids], lambda ids: ["qstat", "-f", "-x", *ids]),
        answer=r"^Job Id:\s*(\d+)(?:.*\n)+?\s*job_state = (\w)",
        ended=frozenset(("F", "X", "C")),
    ),
    marks=("PBS_CONF_FILE", "PBS_EXEC"),
)
