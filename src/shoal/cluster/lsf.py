"""LSF, with blaunch or, on IBM's machines, with jsrun."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cluster.host_lists import Host, hosts_and_slots, hosts_of_lines
from shoal.cluster.scheduler import (
    COUNT_FILE,
    EVERY_MPI,
    OWN_LOG,
    Commands,
    Environ,
    HostVariables,
    Scheduler,
    Script,
    Start,
    WalltimeFacts,
    Words,
    given,
    memory,
    variable_file,
)
from shoal.cluster.start_commands import in_this_folder

if TYPE_CHECKING:
    from shoal.cluster.job import Job


def _hosts_of_pairs(environ: Environ) -> list[Host]:
    return _without_launch_host(hosts_and_slots(environ["LSB_MCPU_HOSTS"], "LSB_MCPU_HOSTS"), environ)


def _hosts_of_file(environ: Environ) -> list[Host]:
    text = variable_file(environ, "LSB_DJOB_HOSTFILE")
    return _without_launch_host(hosts_of_lines(text, f"LSB_DJOB_HOSTFILE={environ['LSB_DJOB_HOSTFILE']}"), environ)


def _hosts_of_names(environ: Environ) -> list[Host]:
    names = "\n".join(environ["LSB_HOSTS"].split())  # one for each slot
    return _without_launch_host(hosts_of_lines(names, "LSB_HOSTS"), environ)


def _without_launch_host(hosts: list[Host], environ: Environ) -> list[Host]:
    # Under IBM's Cluster System Management (Summit, Sierra) the script runs on a launch host. It is listed first, with
    # one slot, and is no compute host. CSM_ALLOCATION_ID tells; Open MPI decides by the same variable.
    launched_apart = environ.get("CSM_ALLOCATION_ID") and len(hosts) > 1 and hosts[0].num_cpus == 1
    return hosts[1:] if launched_apart else hosts


def _jsrun(hosts: Sequence[str], words: Words, _environ: Environ) -> list[Words]:
    one_for_each_host = ["-n", str(len(hosts)), "-r", "1", "-a", "1"]
    all_of_it = ["-c", "ALL_CPUS", "-g", "ALL_GPUS", "-b", "none"]
    return [["jsrun", *one_for_each_host, *all_of_it, "-X", "0", "--smpiargs", "off", *words]]


def _blaunch(hosts: Sequence[str], words: Words, environ: Environ) -> list[Words]:
    return [["blaunch", "-z", " ".join(hosts), "-no-shell", *in_this_folder(words, environ)]]


def _directives(job: Job) -> list[str]:
    # Only LSF with IBM's Cluster Systems Manager counts nodes; everywhere else it counts cores.
    cores = job.cpus_per_node
    spread = [f"-nnodes {job.nodes}"] if cores is None else [f"-n {job.nodes * cores}", f'-R "span[ptile={cores}]"']
    return [
        f"-J {job.name}",
        *spread,
        *given('-gpu "num={}"', job.gpus_per_node),
        *given('-R "rusage[mem={}]"', memory(job, "MB", "GB")),
        f"-W {math.ceil(job.walltime / 60)}",
        *given("-P {}", job.account),
        *given("-q {}", job.partition),
        f"-o {job.log.replace('%j', '%J')}",
        *(["-r", "-Q 99"] if job.requeue else ["-rn"]),
    ]


def _end(answers: str, now: float) -> float | None:
    """From `754 second(s)|20.0/hostA`: the time that it has run, and the limit in minutes of some host."""
    match = re.match(r"\s*(\d+)[^|]*\|\s*([\d.]+)", answers)
    return now - int(match[1]) + 60 * float(match[2]) if match else None


LSF = Scheduler(
    name="lsf",
    title="LSF",
    job_variable="LSB_JOBID",
    part_variables=("LSB_JOBINDEX",),
    host_variables=(
        HostVariables(("LSB_MCPU_HOSTS",), _hosts_of_pairs),
        HostVariables(("LSB_DJOB_HOSTFILE",), _hosts_of_file),
        HostVariables(("LSB_HOSTS",), _hosts_of_names),
    ),
    starts=(Start("jsrun", _jsrun), Start("blaunch", _blaunch)),
    walltime=WalltimeFacts(
        questions=(lambda job_id: ["bjobs", "-noheader", "-o", "run_time runtimelimit delimiter='|'", job_id],),
        end=_end,
    ),
    script=Script(
        word="#BSUB",
        submit="bsub < job.sh",
        directives=_directives,
        opening=(
            "# LSF keeps the output until the job has ended, so this shell writes the log itself.\n"
            f"job_id=$LSB_JOBID\n{OWN_LOG}"
        ),
        requeues="requeues a job that ends with 99 (-Q)",
        again=f'echo "$job_id" >>{COUNT_FILE} && exit 99',
        requeue_code=99,
        every_node="every_node",
        every_node_function=EVERY_MPI,
        warnings="USR1 USR2",  # USR2: the run limit is reached, ten minutes are left
    ),
    commands=Commands(
        submit=("bsub",),
        job_id=r"^Job <(\d+)>",
        cancel="bkill",
        questions=(lambda ids: ["bjobs", "-a", "-noheader", "-o", "jobid stat", *ids],),
        answer=r"^(\d+)\s+(\w+)",
        ended=frozenset(("DONE", "EXIT")),
        from_stdin=True,
    ),
)
