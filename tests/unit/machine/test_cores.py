"""The CPUs of this host that are ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.machine import cores as machine_cores
from shoal.machine.cores import cgroup_cpus, cores, cpus_of_this_process, usable_cpus


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_affinity_of_this_process() -> None:
    assert cpus_of_this_process() == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        ({"job/step/cpu.max": "max 100000"}, None),
        ({"job/step/cpu.max": "250000 100000"}, 2.5),
        ({"job/step/cpu.max": "400000 100000", "job/cpu.max": "200000 100000"}, 2.0),
        ({"job/step/cpuset.cpus.effective": "0-3,8"}, 5.0),
        ({"job/step/cpuset.cpus.effective": "", "job/cpuset.cpus.effective": "2,4-5"}, 3.0),
        ({"job/step/cpu.max": "800000 100000", "cpuset.cpus.effective": "0-3"}, 4.0),
    ],
)
def test_control_groups_of_version_2(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    proc = written(tmp_path / "proc", "0::/job/step\n")
    for name, text in files.items():
        written(tmp_path / "cgroup" / name, text + "\n")
    assert cgroup_cpus(tmp_path / "cgroup", proc) == cpus


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us": "-1"}, None),
        ({"cpuset/slurm/job_1/cpuset.cpus": "0-1", "cpuset/cpuset.cpus": "0-63"}, 2.0),
        ({"cpuset/cpuset.cpus": "4-7"}, 4.0),  # a container sees only the top
    ],
)
def test_control_groups_of_version_1(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    proc = written(tmp_path / "proc", "5:cpuset:/slurm/job_1\n4:cpu,cpuacct:/slurm/job_1\n1:name=systemd:/x\n0::/x\n")
    for name, text in files.items():
        written(tmp_path / "cgroup" / name, text + "\n")
    assert cgroup_cpus(tmp_path / "cgroup", proc) == cpus


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    proc = written(tmp_path / "proc", "4:cpu,cpuacct:/docker/abc\n")
    written(tmp_path / "cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    written(tmp_path / "cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cgroup_cpus(tmp_path, proc) == 1.5


def test_a_path_that_leads_out_of_the_container(tmp_path: Path) -> None:
    written(tmp_path / "outside/cpu.max", "100000 100000\n")
    written(tmp_path / "cgroup/cpu.max", "300000 100000\n")
    assert cgroup_cpus(tmp_path / "cgroup", written(tmp_path / "proc", "0::/../outside\n")) == 3.0


def test_control_groups_of_this_machine_leave_at_least_something() -> None:
    cpus = cgroup_cpus()
    assert cpus is None or cpus > 0
    assert cgroup_cpus(listing=Path("/nowhere")) is None


def test_the_least_is_usable_and_at_least_one() -> None:
    assert usable_cpus({0, 1, 2, 3}, None, None) == 4
    assert usable_cpus({0, 1, 2, 3}, 2.5, None) == 2
    assert usable_cpus({0, 1, 2, 3}, 2.5, 1) == 1
    assert usable_cpus(range(64), None, 36) == 36
    assert usable_cpus({5}, 0.3, 0) == 1


def test_a_quota_of_time_counts_like_an_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_cores, "cgroup_cpus", lambda: None)
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(machine_cores, "cgroup_cpus", lambda: 1.5)
    assert cores() == 1
