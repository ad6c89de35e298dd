"""Grid Engine, in all its kinds."""

from __future__ import annotations

import getpass
import re
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cluster.host_lists import Host, hosts_with_slots
from shoal.cluster.scheduler import (
    COUNT_FILE,
    EVERY_MPI,
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
    variable_file,
)
from shoal.cluster.start_commands import in_this_folder

if TYPE_CHECKING:
    from shoal.cluster.job import Job


def _hosts_of_file(environ: Environ) -> list[Host]:
    return hosts_with_slots(variable_file(environ, "PE_HOSTFILE"), f"PE_HOSTFILE={environ['PE_HOSTFILE']}")


def _this_host(environ: Environ) -> list[Host]:
    slots = environ.get("NSLOTS", "")
    return [Host(socket.gethostname(), int(slots) if slots.isdecimal() else 1)]


def _qrsh(hosts: Sequence[str], words: Words, environ: Environ) -> list[Words]:
    return [["qrsh", "-inherit", "-nostdin", "-noshell", "-V", host, *in_this_folder(words, environ)] for host in hosts]


def _directives(job: Job) -> list[str]:
    return [
        "-S /bin/bash",
        f"-N {job.name}",
        "-cwd",
        f"-pe {job.parallel_environment} {job.nodes * (job.cpus_per_node or 1)}",
        f"-l h_rt={clock(job.walltime)}",
        *given("-P {}", job.account),
        *given("-q {}", job.partition),
        "-j y",
        f"-o {job.log.replace('%j', '$JOB_ID')}",
        "-notify",  # USR2 a while before the end of a deleted job
        f"-r {'y' if job.requeue else 'n'}",
    ]


def _end(answers: str, _now: float) -> float | None:
    """The limit among its hard resources, and the start of the job of that number in the list of running ones."""
    number = re.search(r"^job_number:\s+(\d+)", answers, re.MULTILINE)
    limit = re.search(r"^hard[ _]resource_list:.*\bh_rt=([\d:]+)", answers, re.MULTILINE)
    if number is None or limit is None:
        return None
    job = rf"<JB_job_number>{number[1]}</JB_job_number>(?:(?!</job_list>).)*?<JAT_start_time>([\dT:-]+)"
    begun = re.search(job, answers, re.DOTALL)
    seconds = length(limit[1])
    if begun is None or seconds is None:
        return None
    return time.mktime(time.strptime(begun[1], "%Y-%m-%dT%H:%M:%S")) + seconds


_SITE_OWN = "Grid Engine's name for it differs from site to site; write your site's into extra_directives, as"

GRID_ENGINE = Scheduler(
    name="sge",
    title="Grid Engine",
    job_variable="JOB_ID",
    part_variables=("SGE_TASK_ID",),
    host_variables=(
        HostVariables(("PE_HOSTFILE",), _hosts_of_file),
        HostVariables(("SGE_ROOT", "QUEUE"), _this_host),
    ),
    starts=(Start("qrsh", _qrsh),),
    walltime=WalltimeFacts(
        questions=(
            lambda job_id: ["qstat", "-j", job_id],
            lambda job_id: ["qstat", "-u", getpass.getuser(), "-s", "r", "-xml"],
        ),
        end=_end,
    ),
    script=Script(
        word="#$",
        submit="qsub job.sh",
        directives=_directives,
        opening="job_id=$JOB_ID\nlog=@LOG@",
        requeues="requeues a job that ends with 99",
        again=f'echo "$job_id" >>{COUNT_FILE} && exit 99',
        requeue_code=99,
        requeues_unasked=True,
        chooses_shell=True,
        every_node="every_node",
        every_node_function=EVERY_MPI,
        stops="TERM INT USR2",  # USR2 is what -notify announces the end by
        needed={"parallel_environment": "Grid Engine needs one, and `qconf -spl` lists this site's"},
        refused={
            "gpus_per_node": f'{_SITE_OWN} "-l gpu=1"',
            "memory_per_node": f'{_SITE_OWN} "-l mem_free=4G", which is for each slot',
        },
    ),
    commands=Commands(
        submit=("qsub", "-terse"),
        job_id=r"^(\d+)$",
        cancel="qdel",
        questions=(lambda ids: ["qstat", "-u", getpass.getuser()],),
        answer=r"^\s*(\d+)\s+\S+\s+\S+\s+\S+\s+(\w+)",
    ),
    marks=("SGE_ROOT",),
    help_says=r"GE \d|Grid Engine|-explain",
)
