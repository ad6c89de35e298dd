"""A batch system: one `Scheduler` with its words. shoal.cluster.scheduler says what each field means."""

from __future__ import annotations

from typing import Any

from shoal.cluster.host_lists import hosts_of_lines
from shoal.cluster.scheduler import (
    COUNT_FILE,
    Commands,
    HostVariables,
    Scheduler,
    Script,
    Start,
    clock,
    given,
    variable_file,
)


def _hosts(environ: Any) -> Any:
    return hosts_of_lines(variable_file(environ, "MOON_NODES"), "MOON_NODES")


def _moonrun(hosts: Any, words: Any, environ: Any) -> Any:
    return [["moonrun", "--on", host, *words] for host in hosts]


def _directives(job: Any) -> list[str]:
    return [f"--crew {job.nodes}", f"--until {clock(job.walltime)}", *given("--pays {}", job.account)]


MOONSHOT = Scheduler(
    name="moonshot",
    title="Moonshot",
    job_variable="MOON_ID",
    host_variables=(HostVariables(("MOON_NODES",), _hosts),),
    starts=(Start("moonrun", _moonrun),),
    script=Script(
        word="#MOON",
        submit="mooncast job.sh",
        directives=_directives,
        opening="job_id=$MOON_ID\nlog=@LOG@",
        requeues="requeues a job that ends with 75",
        again=f'echo "$job_id" >>{COUNT_FILE} && exit 75',
        requeue_code=75,
    ),
    commands=Commands(
        submit=("mooncast",),
        job_id=r"^flight (\d+)$",
        cancel="moonend",
        questions=(lambda ids: ["moonlist", *ids],),
        answer=r"^(\d+) (\w+)",
        ended=frozenset(("landed",)),
    ),
)
