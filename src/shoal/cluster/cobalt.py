"""Cobalt, the scheduler of Theta and its neighbours."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cluster.host_lists import Host, expand, hosts_of_lines
from shoal.cluster.scheduler import (
    COUNT_FILE,
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
    given,
    length,
    variable_file,
)
from shoal.cluster.start_commands import SSH

if TYPE_CHECKING:
    from shoal.cluster.job import Job


def _hosts_of_file(environ: Environ) -> list[Host]:
    # A line is a host and says nothing of its CPUs: Cobalt gives whole nodes.
    hosts = hosts_of_lines(variable_file(environ, "COBALT_NODEFILE"), f"COBALT_NODEFILE={environ['COBALT_NODEFILE']}")
    return [Host(host.name) for host in hosts]


def _hosts_of_location(environ: Environ) -> list[Host]:
    # On Crays (Theta) the location is a list of node numbers, 3834-3837,4000; elsewhere one of host names.
    location = environ["COBALT_PARTNAME"]
    if re.fullmatch(r"[\d,-]+", location):
        return [Host(f"nid{int(number):05d}") for number in expand(f"[{location}]", "COBALT_PARTNAME")]
    return [Host(name) for name in expand(location, "COBALT_PARTNAME")]


def _aprun(hosts: Sequence[str], words: Words, _environ: Environ) -> list[Words]:
    # -b: the program stays where it is; a copied interpreter would not find its packages.
    numbers = [match[1] for host in hosts if (match := re.fullmatch(r"nid0*(\d+)", host))]
    where = ["-L", ",".join(numbers)] if len(numbers) == len(hosts) else []
    return [["aprun", "-n", str(len(hosts)), "-N", "1", *where, "-cc", "none", "-b", *words]]


def _hydra(hosts: Sequence[str], words: Words, _environ: Environ) -> list[Words]:
    one_for_each_host = ["-n", str(len(hosts)), "-ppn", "1", "-hosts", ",".join(hosts)]
    return [["mpiexec.hydra", *one_for_each_host, "-disable-auto-cleanup", *words]]


def _directives(job: Job) -> list[str]:
    return [
        f"--jobname {job.name}",
        f"-n {job.nodes}",
        f"-t {math.ceil(job.walltime / 60)}",
        *given("-A {}", job.account),
        *given("-q {}", job.partition),
    ]


def _end(answers: str, now: float) -> float | None:
    """From the last line below the head, `41  00:29:30`."""
    words = answers.split()
    left = length(words[-1]) if words else None
    return None if left is None else now + left


_WHOLE_NODES = "Cobalt allocates whole nodes; leave it out"

COBALT = Scheduler(
    name="cobalt",
    title="Cobalt",
    job_variable="COBALT_JOBID",
    host_variables=(
        HostVariables(("COBALT_NODEFILE",), _hosts_of_file),
        HostVariables(("COBALT_PARTNAME",), _hosts_of_location),
    ),
    starts=(Start("aprun", _aprun), Start("mpiexec.hydra", _hydra), SSH),
    walltime=WalltimeFacts(
        end_variable="COBALT_ENDTIME",
        questions=(lambda job_id: ["qstat", "--header", "JobID:TimeRemaining", job_id],),
        end=_end,
    ),
    script=Script(
        word="#COBALT",
        submit="qsub job.sh",
        directives=_directives,
        opening=(
            "# One log for output and errors, to which a requeued job adds.\n"
            f"job_id=${{SHOAL_FIRST_JOB:-$COBALT_JOBID}}\nsubmitted_from=$PWD\n{OWN_LOG}"
        ),
        requeues=SUBMITS_ANEW,
        again=f'cd "$submitted_from" && qsub --env SHOAL_FIRST_JOB="$job_id" "$0" >>{COUNT_FILE} && exit 0',
        refused={
            "cpus_per_node": _WHOLE_NODES,
            "gpus_per_node": _WHOLE_NODES,
            "memory_per_node": _WHOLE_NODES,
        },
        variables="--env",
        every_node="aprun -n @NODES@ -N 1 -cc none",
    ),
    commands=Commands(
        submit=("qsub",),
        job_id=r"^(\d+)$",
        cancel="qdel",
        questions=(lambda ids: ["qstat", "--header", "JobID:State", *ids],),
        answer=r"^\s*(\d+)\s+(\w+)",
    ),
    marks=("COBALT_",),
    help_says=r"(?i:cobalt|--header)",
)
