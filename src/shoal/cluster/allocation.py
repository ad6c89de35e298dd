"""Which hosts a scheduler has given to this job, told by its environment."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.cluster.host_lists import Host
from shoal.cluster.scheduler import Environ, HostVariables, Scheduler
from shoal.cluster.schedulers import all_schedulers, scheduler_called
from shoal.errors import ClusterError

__all__ = ["Allocation", "Host", "allocation", "job_of", "scheduler_of"]


@dataclass(frozen=True)
class Allocation:
    """What the scheduler has given to this job."""

    scheduler: str
    job_id: str
    hosts: tuple[Host, ...]  # in the scheduler's order, each once


def allocation(environ: Environ, scheduler: str | None = None) -> Allocation | None:
    """What this process's scheduler has given; None outside of any job; `scheduler` says which one it must be."""
    if scheduler == "none":
        return None
    known = all_schedulers() if scheduler is None else [scheduler_called(scheduler)]
    for each in known:
        job_id = _job_id(each, environ)
        variables = _variables(each, environ)
        if job_id is None or variables is None:
            continue
        hosts = variables.hosts(environ)
        if not hosts:
            name = variables.names[-1]
            raise ClusterError(f"{name}={environ[name]!r} names no host; name the hosts with --hosts.")
        return Allocation(each.name, job_id, tuple(hosts))
    if scheduler is None:
        return None
    (wanted,) = known
    ways = ", or ".join(" and ".join((wanted.job_variable, *way.names)) for way in wanted.host_variables)
    raise ClusterError(
        f"This is not a job of {scheduler}: {ways} must be set; run this inside a job, or leave --scheduler out."
    )


def scheduler_of(environ: Environ) -> Scheduler | None:
    """The scheduler that this process is in a job of; None outside of any."""
    for each in all_schedulers():
        if _job_id(each, environ) is not None and _variables(each, environ) is not None:
            return each
    return None


def job_of(environ: Environ) -> str | None:
    """The id of the job that this process is part of, whoever its scheduler is."""
    found = (_job_id(each, environ) for each in all_schedulers())
    return next((job_id for job_id in found if job_id is not None), None)


def _variables(scheduler: Scheduler, environ: Environ) -> HostVariables | None:
    for variables in scheduler.host_variables:
        if all(environ.get(name) for name in variables.names):
            return variables
    return None


def _job_id(scheduler: Scheduler, environ: Environ) -> str | None:
    """The job's id, with what tells it from others of the same id: elements of an array, a requeued job."""
    job_id = environ.get(scheduler.job_variable)
    if not job_id:
        return None
    for name in scheduler.part_variables:
        if environ.get(name, "") not in ("", "0", "undefined"):
            job_id += f".{environ[name]}"
    return job_id
