"""Which hosts a scheduler has given to this job, told by its environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One machine of an allocation, and what of it is ours where the scheduler says so."""

    name: str
    num_cpus: int | None = None
    num_gpus: int | None = None


@dataclass(frozen=True)
class Allocation:
    """What the scheduler has given to this job."""

    scheduler: str  # slurm, pbs, lsf, cobalt, sge
    job_id: str
    hosts: tuple[Host, ...]  # in the scheduler's order, each once
