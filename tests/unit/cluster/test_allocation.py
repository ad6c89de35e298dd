"""What a scheduler has given, from the variables of its jobs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shoal.cluster.allocation import Allocation, Host, allocation
from shoal.cluster.slurm import SLURM as SLURM_SCHEDULER
from shoal.errors import ClusterError, ConfigError

# After the manual of sbatch.
SLURM = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "36(x2),4",
    "SLURMD_NODENAME": "n1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "3",
}

HET = {  # as Slurm 22.05 has them
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "1(x2)",
    "SLURM_GPUS_PER_NODE_HET_GROUP_1": "a100:4",
}


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_outside_of_any_job_there_is_none() -> None:
    assert allocation({}) is None
    assert allocation({"JOB_ID": "7", "PATH": "/bin"}) is None
    assert allocation({"SLURM_JOB_ID": "", "SLURM_JOB_NODELIST": ""}) is None


def test_slurm_after_the_documentation() -> None:
    assert allocation(SLURM) == Allocation("slurm", "12", (Host("n1", 36), Host("n2", 36), Host("n3", 4)))


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_GPUS_ON_NODE": "2"}, [2, None, None]),
        ({"SLURM_JOB_GPUS": "0,3"}, [2, None, None]),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, [4, 4, 4]),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1", "SLURM_GPUS_ON_NODE": "3"}, [3, 3, 3]),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURMD_NODENAME": "login"}, [None, None, None]),
        ({}, [None, None, None]),
    ],
)
def test_gpus_of_slurm_are_known_where_it_tells(variables: dict[str, str], gpus: list[int | None]) -> None:
    given = allocation({**SLURM, **variables})
    assert given is not None
    assert [host.num_gpus for host in given.hosts] == gpus


def test_slurm_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"SLURM_JOB_CPUS_PER_NODE=36\(x2\) does not fit the 3 hosts"):
        allocation({**SLURM, "SLURM_JOB_CPUS_PER_NODE": "36(x2)"})
    with pytest.raises(ClusterError, match="Slurm job 12 has 2 groups, but SLURM_JOB_NODELIST_HET_GROUP_0 is not set"):
        allocation({**SLURM, "SLURM_HET_SIZE": "2"})
    with pytest.raises(ClusterError, match=r"^SLURM_JOB_NODELIST: a bracket that is never closed"):
        allocation({**SLURM, "SLURM_JOB_NODELIST": "n[1-3"})


def test_the_groups_of_a_heterogeneous_job_are_one_allocation() -> None:
    given = allocation({**SLURM, **HET})
    assert given == Allocation("slurm", "12", (Host("n1", 2), Host("n2", 1, 4), Host("n3", 1, 4)))
    steps = SLURM_SCHEDULER.starts[0].commands(["n1", "n3"], ["/bin/true"], HET)
    assert [[word for word in step if "het" in word or "nodelist" in word] for step in steps] == [
        ["--het-group=0", "--nodelist=n1"],
        ["--het-group=1", "--nodelist=n3"],
    ]


def test_pbs_after_the_documentation(tmp_path: Path) -> None:
    torque = {"PBS_JOBID": "7.server", "PBS_NODEFILE": written(tmp_path / "torque", "n1\nn1\nn2\nn2\n")}
    assert allocation(torque) == Allocation("pbs", "7.server", (Host("n1", 2), Host("n2", 2)))
    pro = {"PBS_JOBID": "8[1].server", "PBS_NODEFILE": written(tmp_path / "pro", "n1.site\nn2.site\n"), "NCPUS": "64"}
    assert allocation(pro) == Allocation("pbs", "8[1].server", (Host("n1.site", 64), Host("n2.site", 64)))


def test_lsf_after_the_documentation(tmp_path: Path) -> None:
    two = (Host("h1", 2), Host("h2", 1))
    file = written(tmp_path / "hosts", "h1\nh1\nh2\n")
    for hosts in ({"LSB_MCPU_HOSTS": "h1 2 h2 1"}, {"LSB_HOSTS": "h1 h1 h2"}, {"LSB_DJOB_HOSTFILE": file}):
        assert allocation({"LSB_JOBID": "5", "LSB_JOBINDEX": "0", **hosts}) == Allocation("lsf", "5", two)
    array = allocation({"LSB_JOBID": "5", "LSB_JOBINDEX": "3", "LSB_HOSTS": "h1"})
    assert array is not None
    assert array.job_id == "5.3"


def test_lsf_on_summit_does_not_count_the_launch_host() -> None:
    summit = {"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "batch2 1 a01n01 42 a01n02 42"}
    given = allocation({**summit, "CSM_ALLOCATION_ID": "99"})
    assert given is not None
    assert given.hosts == (Host("a01n01", 42), Host("a01n02", 42))
    elsewhere = allocation(summit)
    assert elsewhere is not None
    assert len(elsewhere.hosts) == 3


def test_cobalt_after_the_documentation(tmp_path: Path) -> None:
    theta = {"COBALT_JOBID": "9", "COBALT_PARTNAME": "3834-3835,4", "COBALT_JOBSIZE": "3"}
    assert allocation(theta) == Allocation("cobalt", "9", (Host("nid03834"), Host("nid03835"), Host("nid00004")))
    named = allocation({"COBALT_JOBID": "9", "COBALT_PARTNAME": "gpu[01-02]"})
    assert named == Allocation("cobalt", "9", (Host("gpu01"), Host("gpu02")))
    cooley = {"COBALT_JOBID": "9", "COBALT_NODEFILE": written(tmp_path / "nodes", "cc1\ncc2\n")}
    assert allocation(cooley) == Allocation("cobalt", "9", (Host("cc1"), Host("cc2")))


def test_grid_engine_after_the_documentation(tmp_path: Path) -> None:
    file = written(tmp_path / "hosts", "n1 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 UNDEFINED\n")
    job = {"JOB_ID": "3", "SGE_TASK_ID": "undefined", "SGE_ROOT": "/sge", "QUEUE": "all.q", "NSLOTS": "6"}
    assert allocation({**job, "PE_HOSTFILE": file}) == Allocation("sge", "3", (Host("n1", 4), Host("n2", 2)))
    alone = allocation({**job, "SGE_TASK_ID": "2"})
    assert alone == Allocation("sge", "3.2", (Host(socket.gethostname(), 6),))


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"PBS_JOBID": "7"}, "PBS_NODEFILE"),
        ({"LSB_JOBID": "7"}, "LSB_DJOB_HOSTFILE"),
        ({"COBALT_JOBID": "7"}, "COBALT_NODEFILE"),
        ({"JOB_ID": "7"}, "PE_HOSTFILE"),
    ],
)
def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path, environ: dict[str, str], variable: str) -> None:
    file = tmp_path / "hosts"
    with pytest.raises(ClusterError, match=rf"^{variable}={file} cannot be read \(No such file or directory\)"):
        allocation({**environ, variable: str(file)})
    file.write_text("\n\n")
    with pytest.raises(ClusterError, match=f"^{variable}='{file}' names no host"):
        allocation({**environ, variable: str(file)})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterError, match=rf"^{variable}={file} cannot be read \(it is not text\)"):
        allocation({**environ, variable: str(file)})


def test_the_scheduler_can_be_told(tmp_path: Path) -> None:
    both = {**SLURM, "PBS_JOBID": "7", "PBS_NODEFILE": written(tmp_path / "nodes", "p1\n")}
    assert allocation(both) == allocation(SLURM)
    assert allocation(both, "pbs") == Allocation("pbs", "7", (Host("p1", 1),))
    assert allocation(both, "none") is None
    with pytest.raises(ClusterError, match="This is not a job of lsf: LSB_JOBID and LSB_MCPU_HOSTS, or LSB_JOBID and "):
        allocation(both, "lsf")
    with pytest.raises(ConfigError, match="there is no scheduler 'slrum'; use --scheduler with one of slurm, lsf"):
        allocation(both, "slrum")
