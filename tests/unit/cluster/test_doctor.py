"""What is made of the facts: verdicts, remedies, and hosts told together."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cluster.doctor import CheckRow, folded, rows
from shoal.cluster.host_checks import CHECKS
from shoal.cluster.host_facts import facts
from shoal.cluster.host_lists import expand

GB = 10**9
WELL: dict[str, Any] = {
    "hostname": "n1",
    "user": "me",
    "time": 100.0,
    "asked_at": 99.5,
    "answered_at": 100.5,
    "python": {"version": "3.11.2", "executable": "/env/bin/python", "safe_path": False, "shadowed": []},
    "versions": {"shoal": "0.1.0", "ray": "2.60.0", "torch": None, "numpy": "2.4.6", "gymnasium": "1.4.0"},
    "limits": {"open_files": [65535, 65535], "processes": [None, None], "core": [0, None]},
    "tasks": {
        "of_user": 10,
        "of_all": 500,
        "threads_max": 100_000,
        "cgroup_room": None,
        "rays": {"ours": 0, "others": 0},
    },
    "shm": {"size": 32 * GB, "free": 31 * GB, "writable": True},
    "memory": {"total": 64 * GB, "machine": 64 * GB, "available": 60 * GB},
    "temp_folders": [
        {
            "path": "/tmp",
            "bytes": 4,
            "file_system": "xfs",
            "noexec": False,
            "space": {"size": 100 * GB, "free": 50 * GB, "writable": True},
        }
    ],
    "home": {"path": "/home/me", "is_there": True, "is_writable": True},
    "jobs_folder": {"path": "/home/me/.shoal/jobs", "is_there": True, "is_writable": True, "is_seen": True},
    "addresses": [
        {"interface": "lo", "address": "127.0.0.1", "netmask": "255.0.0.0"},
        {"interface": "eth0", "address": "10.0.0.1", "netmask": "255.255.255.0"},
    ],
    "resolves_to": ["10.0.0.1"],
    "token_files": [],
    "cpus": {"machine": 36, "affinity": 36, "cgroup": None},
    "gpus": [],
    "gpu_variables": {},
    "allocation": {"scheduler": "slurm", "job_id": "7", "hosts": ["n1", "n2", "n3"], "cpus_here": 36},
    "variables": {},
    "ray_variables": [],
    "proxies": {},
    "no_proxy": "",
    "tmp_ray": {"folder": None, "pointer": None},
    "selinux": {"enforcing": False, "context": ""},
    "umask": "0022",
    "encoding": "UTF-8",
}


def host(**changes: Any) -> dict[str, Any]:
    """A host where all is well but for what is said: `temp_folders__0__noexec=True`."""
    told = copy.deepcopy(WELL)
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner: Any = told
        for name in parents:
            inner = inner[int(name)] if isinstance(inner, list) else inner[name]
        inner[last] = value
    return told


def row(check: str, **hosts: dict[str, Any]) -> CheckRow:
    (found,) = (row for row in rows(hosts) if row.check == check)
    return found


def test_all_is_well_on_one_host_and_on_three() -> None:
    for hosts in ({"n1": host()}, {"n1": host(), "n2": host(), "n3": host()}):
        made = rows(hosts)
        assert {row.verdict for row in made} == {"ok"}
        assert all(list(row.findings) == list(hosts) for row in made)
        assert not any(row.remedies for row in made)


def test_the_facts_of_this_host_can_be_judged() -> None:
    here = facts()
    assert len(rows({"here": here})) >= 15
    assert len(rows({"here": here, "there": here})) >= 15


CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("versions", "bad", {"versions__ray": None}, "/env/bin/python -m pip install 'ray[tune]>=2.54'"),
    ("versions", "bad", {"versions__ray": "2.9.3"}, "pip install 'ray[tune]>=2.54'"),
    ("versions", "bad", {"versions__ray": "2.59.0"}, "/env/bin/python -m pip install 'ray==2.60.0'"),
    ("versions", "bad", {"python__version": "3.11.3"}, "use one environment on every host"),
    ("versions", "bad", {"versions__shoal": "0.0.9"}, "use one environment on every host"),
    ("versions", "warn", {"versions__numpy": "1.26.4"}, "'numpy==2.4.6'"),
    ("versions", "warn", {"versions__torch": "2.13.0+cpu"}, "use one environment on every host"),
    ("python", "bad", {"variables__PYTHONHOME": "/old"}, "unset PYTHONHOME"),
    ("python", "warn", {"python__shadowed": ["numpy"], "variables__PYTHONPATH": "/site"}, "unset PYTHONPATH"),
    ("python", "warn", {"python__safe_path": True}, "unset PYTHONSAFEPATH"),
    ("CPUs", "warn", {"cpus__affinity": 1}, "--cpu-bind=none"),
    ("CPUs", "warn", {"cpus__cgroup": 2.5}, "--cpus-per-task"),
    ("CPUs", "bad", {"allocation": {"error": "PBS_NODEFILE: cannot be read"}}, "--scheduler"),
    ("GPUs", "bad", {"gpu_variables__ROCR_VISIBLE_DEVICES": "0"}, "export HIP_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES"),
    ("memory", "warn", {"memory__available": GB // 2}, "--mem"),
    ("/dev/shm", "bad", {"shm": None}, "mount -t tmpfs"),
    ("/dev/shm", "warn", {"shm__size": 64 * 2**20, "shm__free": 64 * 2**20}, "docker run --shm-size=10.2g"),
    ("/dev/shm", "warn", {"shm__free": GB}, "find /dev/shm -user $USER"),
    ("temp folder", "bad", {"temp_folders__0__file_system": "nfs4"}, "export TMPDIR="),
    ("temp folder", "bad", {"temp_folders__0__file_system": "fuse.sshfs"}, "export TMPDIR="),
    ("temp folder", "bad", {"temp_folders__0__bytes": 29}, "export TMPDIR="),
    ("temp folder", "bad", {"temp_folders__0__space": None}, "export TMPDIR="),
    ("temp folder", "bad", {"temp_folders__0__space__free": 4 * GB}, "export TMPDIR="),
    ("temp folder", "bad", {"temp_folders__0__noexec": True}, "export TMPDIR="),
    ("open files", "warn", {"limits__open_files": [1024, 1048576]}, "ulimit -n 65535"),
    ("open files", "warn", {"limits__open_files": [1024, 20000]}, "ulimit -n 20000; ask the administrator"),
    ("open files", "warn", {"limits__open_files": [20000, 20000]}, "ask the administrator for a hard limit of 65535"),
    ("open files", "bad", {"limits__open_files": [1024, 1024]}, "ask the administrator"),
    ("threads", "bad", {"limits__processes": [512, None]}, "ulimit -u unlimited"),
    ("threads", "bad", {"tasks__cgroup_room": 100}, "--num-workers N"),
    ("threads", "warn", {"tasks__threads_max": 2000}, "ask the administrator"),
    ("core dumps", "warn", {"limits__core": [None, None]}, "ulimit -c 0"),
    ("addresses", "bad", {"addresses": WELL["addresses"][:1]}, "ip -brief address"),
    ("addresses", "warn", {"resolves_to": ["127.0.1.1"]}, "--node-ip-address"),
    ("addresses", "warn", {"resolves_to": None}, "--node-ip-address"),
    ("clock", "warn", {"time": 110.0}, "chronyc makestep"),
    ("clock", "bad", {"time": -3600.0}, "chronyc makestep"),
    ("token", "bad", {"token_files": [{"path": "/h/t", "mode": "0644", "owner": "us"}]}, "chmod 600 /h/t"),
    ("token", "bad", {"token_files": [{"path": "/h/t", "mode": "0600", "owner": "another user"}]}, "mv /h/t"),
    ("token", "bad", {"variables__RAY_AUTH_MODE": "disabled"}, "unset RAY_AUTH_MODE"),
    ("token", "warn", {"ray_variables": ["RAY_AUTH_TOKEN"]}, "unset RAY_AUTH_TOKEN"),
    ("RAY_ variables", "warn", {"ray_variables": ["RAY_ADDRESS", "RAY_X"]}, "unset RAY_ADDRESS RAY_X"),
    ("LD_PRELOAD", "warn", {"variables__LD_PRELOAD": "/opt/darshan.so"}, "unset LD_PRELOAD"),
    ("proxies", "warn", {"proxies": {"http_proxy": "proxy:3128"}}, "no_proxy='*'"),
    ("home", "warn", {"home": {"path": "/home/me", "is_there": False, "is_writable": False}}, "export HOME="),
    ("home", "warn", {"home": {"path": "/home/me", "is_there": True, "is_writable": False}}, "export HOME="),
    ("jobs folder", "bad", {"jobs_folder__is_writable": False}, "export SHOAL_JOBS_DIR="),
    ("jobs folder", "bad", {"jobs_folder__is_seen": False}, "export SHOAL_JOBS_DIR="),
    ("jobs folder", "warn", {"jobs_folder__is_seen": False, "allocation": None}, "export SHOAL_JOBS_DIR="),
    ("proxies", "warn", {"proxies": {"http_proxy": "proxy:3128"}, "no_proxy": "n1,n2"}, "no_proxy='*'"),
    ("other Rays", "warn", {"tasks__rays__ours": 2}, "ps -u $USER"),
    ("other Rays", "warn", {"tmp_ray__folder": "another user"}, "--ray-address HOST:PORT"),
    ("SELinux", "warn", {"selinux": {"enforcing": True, "context": "user_u:user_r:user_t:s0"}}, "ausearch"),
    ("umask", "warn", {"umask": "0000"}, "umask 022"),
    ("encoding", "warn", {"encoding": "ISO-8859-1"}, "export LC_ALL=C.UTF-8"),
]


@pytest.mark.parametrize(("check", "verdict", "changes", "remedy"), CASES)
def test_a_trouble_of_one_host_is_told_with_its_remedy(
    check: str, verdict: str, changes: dict[str, Any], remedy: str
) -> None:
    hosts = {"n1": host(), "n2": host(**changes), "n3": host()}
    troubled = [row for row in rows(hosts) if row.verdict != "ok"]
    assert [row.check for row in troubled] == [check]
    assert troubled[0].verdict == verdict
    assert {name: finding.verdict for name, finding in troubled[0].findings.items()} == {
        "n1": "ok",
        "n2": verdict,
        "n3": "ok",
    }
    (told,) = troubled[0].remedies
    assert remedy in told


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("temp folder", {"temp_folders__0__file_system": "tmpfs"}),
        ("open files", {"limits__open_files": [None, None]}),
        ("proxies", {"proxies": {"http_proxy": "proxy:3128"}, "no_proxy": "localhost, n1,n2, n3"}),
        ("proxies", {"proxies": {"http_proxy": "proxy:3128"}, "no_proxy": "*"}),
        ("SELinux", {"selinux": {"enforcing": True, "context": "unconfined_u:unconfined_r:unconfined_t:s0"}}),
        ("other Rays", {"tasks__rays__others": 4}),
        ("GPUs", {"gpu_variables": {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}}),
        ("clock", {"time": 101.4}),
        ("token", {"token_files": [{"path": "/h/t", "mode": "0600", "owner": "us"}]}),
        ("umask", {"umask": None}),
    ],
)
def test_what_is_no_trouble(check: str, changes: dict[str, Any]) -> None:
    assert row(check, n1=host(), n2=host(**changes), n3=host()).verdict == "ok"


def test_a_proxy_of_one_host_is_told_as_such() -> None:
    made = row("proxies", n1=host(), n2=host(proxies={"http_proxy": "proxy:3128"}), n3=host())
    assert made.findings["n2"].detail == "http_proxy=proxy:3128, between the hosts too; elsewhere none"


def test_alone_a_host_needs_no_network_and_no_clock() -> None:
    made = rows({"n1": host(resolves_to=None, addresses=[], proxies={"http_proxy": "proxy:3128"}, time=0.0)})
    assert {row.verdict for row in made} == {"ok"}
    assert "clock" not in [row.check for row in made]


def test_another_folder_for_temporary_files_is_offered() -> None:
    far = {**WELL["temp_folders"][0], "path": "/home/me/tmp", "file_system": "nfs4"}
    made = row("temp folder", n1=host(temp_folders=[far, WELL["temp_folders"][0]]))
    assert made.verdict == "warn"
    assert made.remedies == ["unset RAY_TMPDIR; export TMPDIR=/tmp"]


def test_a_host_that_does_not_answer_is_told_and_hides_nothing() -> None:
    made = rows({"n1": host(), "n2": {"error": "ssh: connect to host n2: No route to host"}})
    assert made[0].check == "answer"
    assert made[0].lines() == [
        ("bad", "n2", "ssh: connect to host n2: No route to host"),
        ("ok", "n1", "answers"),
    ]
    assert all(list(row.findings) == ["n1"] for row in made[1:])
    assert [row.check for row in rows({"n2": {"error": "no route"}})] == ["answer"]


def test_hosts_that_agree_are_told_together() -> None:
    hosts = {f"n{number}": host() for number in range(1, 33)}
    assert row("open files", **hosts).lines() == [("ok", "n[1-32]", "65535")]
    hosts["n7"] = host(limits__open_files=[1024, 1024])
    assert row("open files", **hosts).lines() == [
        ("bad", "n7", "1024, at most 1024"),
        ("ok", "n[1-6,8-32]", "65535"),
    ]


def test_hosts_that_are_well_in_different_ways_are_told_together() -> None:
    hosts = {f"n{number}": host(memory__available=number * GB) for number in range(2, 9)}
    assert row("memory", **hosts).lines() == [("ok", "n[2-8]", "ok")]
    hosts = {f"n{number}": host(memory__available=number * 10**6) for number in range(2, 9)}
    assert row("memory", **hosts).lines() == [("warn", "n[2-8]", "such as: 2.0 MB free of 64 GB")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["login"], "login"),
        (["n", "n1"], "n,n1"),
        (["n3", "n1", "n2", "n2"], "n[1-3]"),
        (["n8", "n9", "n10", "n12"], "n[8-10,12]"),
        (["n08", "n09", "n10", "n1"], "n[1,08-10]"),
        (["gpu-a1.site.org", "gpu-a2.site.org", "cpu2"], "gpu-a[1-2].site.org,cpu2"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["10.0.0.7", "10.0.0.8"], "10.0.0.[7-8]"),
        (["n1-ib", "n2-ib"], "n[1-2]-ib"),
        ([], ""),
    ],
)
def test_names_are_folded_as_schedulers_write_them(names: list[str], expected: str) -> None:
    assert folded(names) == expected


def test_the_document_has_every_check() -> None:
    document = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    listed = re.findall(r"^\| ([^|`]+?) \|", document, re.MULTILINE)
    assert listed == ["check", "answer", *CHECKS]


@settings(deadline=None)
@given(st.sets(st.from_regex(r"(n|gpu-|r1n)0{0,2}[0-9]{1,3}(-ib)?(\.site1\.org)?", fullmatch=True)))
def test_folded_names_unfold_to_the_same(names: set[str]) -> None:
    assert sorted(expand(folded(names)) if names else []) == sorted(names)
