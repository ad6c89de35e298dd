"""Which hosts a scheduler has given to this job, told by its environment."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shoal.cluster.host_lists import Host, expand, lsf_pairs, pbs_node_file, sge_host_file
from shoal.errors import ClusterError

__all__ = ["Allocation", "Host", "allocation", "node_file"]


@dataclass(frozen=True)
class Allocation:
    """What the scheduler has given to this job."""

    scheduler: str  # slurm, pbs, lsf, cobalt, sge
    job_id: str
    hosts: tuple[Host, ...]  # in the scheduler's order, each once


def allocation(environ: Mapping[str, str], scheduler: str | None = None) -> Allocation | None:
    """What this process's scheduler has given; None outside of any job; `scheduler` says which one it must be."""
    if scheduler == "none":
        return None
    rows = [row for row in _SCHEDULERS if scheduler in (None, row.name)]
    if not rows:
        names = ", ".join(dict.fromkeys(row.name for row in _SCHEDULERS))
        raise ClusterError(f"There is no scheduler {scheduler!r}; say --scheduler with one of {names}, none.")
    row = next((row for row in rows if all(environ.get(variable) for variable in row.proof)), None)
    if row is None:
        if scheduler is None:
            return None
        wanted = ", or ".join(" and ".join(row.proof) for row in rows)
        raise ClusterError(
            f"This is no {scheduler} job: {wanted} must be set; run this inside of a job, or leave --scheduler out."
        )
    hosts = row.hosts(environ)
    if not hosts:
        raise ClusterError(f"{row.proof[-1]}={environ[row.proof[-1]]!r} names no host; name the hosts with --hosts.")
    job_id, index = environ[row.proof[0]], environ.get(row.array_index, "")
    # Elements of an array share the job's id in LSF and Grid Engine, and are told apart by an index.
    return Allocation(row.name, job_id if index in ("", "0", "undefined") else f"{job_id}.{index}", tuple(hosts))


def node_file(environ: Mapping[str, str], variable: str) -> str:
    """The text of the file that a scheduler's variable names."""
    path = environ[variable]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ClusterError(
            f"{variable}={path} cannot be read ({reason}); run this on the job's first host, or use --hosts."
        ) from error


def _slurm(environ: Mapping[str, str]) -> list[Host]:
    if environ.get("SLURM_HET_SIZE"):
        # Each of its parts has a node list, a step and task numbers of its own; one srun cannot reach all of them.
        raise ClusterError(
            f"Slurm job {environ['SLURM_JOB_ID']} is a heterogeneous one (SLURM_HET_SIZE={environ['SLURM_HET_SIZE']}); "
            "submit it with one group of nodes, or name the hosts with --hosts."
        )
    names = expand(environ["SLURM_JOB_NODELIST"], "SLURM_JOB_NODELIST")
    cpus = _slurm_cpus(environ, names)
    everywhere = _slurm_gpus(environ.get("SLURM_GPUS_PER_NODE", ""))
    here = _slurm_gpus(environ.get("SLURM_GPUS_ON_NODE", ""))
    if here is None and environ.get("SLURM_JOB_GPUS"):
        here = len(environ["SLURM_JOB_GPUS"].split(","))
    gpus = {environ.get("SLURMD_NODENAME"): everywhere if here is None else here}
    return [Host(name, count, gpus.get(name, everywhere)) for name, count in zip(names, cpus)]


def _slurm_cpus(environ: Mapping[str, str], names: Sequence[str]) -> Sequence[int | None]:
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


def _slurm_gpus(text: str) -> int | None:
    """GPUs of a node, from `4`, `a100:4` or `a100:2,v100:1`."""
    counts = [item.rpartition(":")[2] for item in text.split(",")]
    return sum(map(int, counts)) if all(count.isdecimal() for count in counts) else None


def _pbs(environ: Mapping[str, str]) -> list[Host]:
    # Torque writes a line for each CPU. PBS Pro writes one for each MPI process, mostly one a host, and gives NCPUS:
    # the CPUs of one chunk, or its ompthreads. The larger number is never more than what was given.
    hosts = pbs_node_file(node_file(environ, "PBS_NODEFILE"), _named(environ, "PBS_NODEFILE"))
    ncpus = environ.get("NCPUS", "")
    given = int(ncpus) if ncpus.isdecimal() else 1
    return [replace(host, num_cpus=max(host.num_cpus or 1, given)) for host in hosts]


def _lsf_pairs(environ: Mapping[str, str]) -> list[Host]:
    return _without_launch_host(lsf_pairs(environ["LSB_MCPU_HOSTS"]), environ)


def _lsf_file(environ: Mapping[str, str]) -> list[Host]:
    text = node_file(environ, "LSB_DJOB_HOSTFILE")
    return _without_launch_host(pbs_node_file(text, _named(environ, "LSB_DJOB_HOSTFILE")), environ)


def _lsf_names(environ: Mapping[str, str]) -> list[Host]:
    names = "\n".join(environ["LSB_HOSTS"].split())  # one for each slot
    return _without_launch_host(pbs_node_file(names, "LSB_HOSTS"), environ)


def _without_launch_host(hosts: list[Host], environ: Mapping[str, str]) -> list[Host]:
    # Under IBM's Cluster System Management (Summit, Sierra) the script runs on a launch host. It is listed first, with
    # one slot, and is no compute host. CSM_ALLOCATION_ID tells; Open MPI decides by the same variable.
    launched_apart = environ.get("CSM_ALLOCATION_ID") and len(hosts) > 1 and hosts[0].num_cpus == 1
    return hosts[1:] if launched_apart else hosts


def _cobalt_file(environ: Mapping[str, str]) -> list[Host]:
    # A line is a host and says nothing of its CPUs: Cobalt gives whole nodes.
    hosts = pbs_node_file(node_file(environ, "COBALT_NODEFILE"), _named(environ, "COBALT_NODEFILE"))
    return [Host(host.name) for host in hosts]


def _cobalt_location(environ: Mapping[str, str]) -> list[Host]:
    # On Crays (Theta) the location is a list of node numbers, 3834-3837,4000; elsewhere one of host names.
    location = environ["COBALT_PARTNAME"]
    if re.fullmatch(r"[\d,-]+", location):
        return [Host(f"nid{int(number):05d}") for number in expand(f"[{location}]", "COBALT_PARTNAME")]
    return [Host(name) for name in expand(location, "COBALT_PARTNAME")]


def _sge_parallel(environ: Mapping[str, str]) -> list[Host]:
    return sge_host_file(node_file(environ, "PE_HOSTFILE"), _named(environ, "PE_HOSTFILE"))


def _sge_alone(environ: Mapping[str, str]) -> list[Host]:
    slots = environ.get("NSLOTS", "")
    return [Host(socket.gethostname(), int(slots) if slots.isdecimal() else 1)]


def _named(environ: Mapping[str, str], variable: str) -> str:
    return f"{variable}={environ[variable]}"


class _Scheduler(NamedTuple):
    """How one scheduler is recognised, and who reads its hosts."""

    name: str
    proof: tuple[str, ...]  # all of them are set inside of its jobs; the first is the job's id, the last has the hosts
    hosts: Callable[[Mapping[str, str]], list[Host]]
    array_index: str = ""


_SCHEDULERS = (
    _Scheduler("slurm", ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"), _slurm),
    _Scheduler("cobalt", ("COBALT_JOBID", "COBALT_NODEFILE"), _cobalt_file),
    _Scheduler("cobalt", ("COBALT_JOBID", "COBALT_PARTNAME"), _cobalt_location),
    _Scheduler("lsf", ("LSB_JOBID", "LSB_MCPU_HOSTS"), _lsf_pairs, "LSB_JOBINDEX"),
    _Scheduler("lsf", ("LSB_JOBID", "LSB_DJOB_HOSTFILE"), _lsf_file, "LSB_JOBINDEX"),
    _Scheduler("lsf", ("LSB_JOBID", "LSB_HOSTS"), _lsf_names, "LSB_JOBINDEX"),
    _Scheduler("pbs", ("PBS_JOBID", "PBS_NODEFILE"), _pbs),
    _Scheduler("sge", ("JOB_ID", "PE_HOSTFILE"), _sge_parallel, "SGE_TASK_ID"),
    _Scheduler("sge", ("JOB_ID", "SGE_ROOT", "QUEUE"), _sge_alone, "SGE_TASK_ID"),
)
