"""What is told of a host, on this one and on file systems and groups made for the purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cluster.host_facts import facts, mount_of, parsed_mounts, tasks

MOUNTINFO = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:25 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
29 27 0:26 / /tmp rw,nosuid,noexec - tmpfs tmpfs rw
30 27 0:27 / /scratch/big\040disk rw - lustre mds@tcp:/fs rw
31 27 0:28 / /tmp rw - xfs /dev/vdb rw
""".strip()


def told_by_a_child(before: str) -> dict[str, Any]:
    """The facts of a new process, after something was said to its shell."""
    program = "import json; from shoal.cluster.host_facts import facts; print(json.dumps(facts()))"
    command = f'{before}; exec {sys.executable} -c "{program}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_facts_of_this_host_are_plain_and_true() -> None:
    told = facts()
    assert json.loads(json.dumps(told)) == told
    assert told["hostname"] == os.uname().nodename
    assert told["python"]["executable"] == sys.executable
    assert told["versions"]["shoal"] is not None
    assert told["tasks"]["of_user"] >= 1
    assert told["tasks"]["of_all"] >= told["tasks"]["of_user"]
    assert 0 < told["memory"]["available"] <= told["memory"]["total"] <= told["memory"]["machine"]
    assert {entry["address"] for entry in told["addresses"]} >= {"127.0.0.1"}
    assert "/tmp" in [folder["path"] for folder in told["temp_folders"]]


def test_neither_ray_nor_torch_is_imported() -> None:
    program = "import sys; from shoal.cluster.host_facts import facts; facts(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"ray", "torch", "numpy"} & set(done.stdout.split())


def test_limits_and_umask_are_those_of_the_process() -> None:
    told = told_by_a_child("ulimit -S -n 777; ulimit -S -c 0; umask 027")
    assert told["limits"]["open_files"][0] == 777
    assert told["limits"]["core"][0] == 0
    assert told["umask"] == "0027"


def test_no_secret_is_told() -> None:
    environ = {
        "RAY_AUTH_TOKEN": "canary",
        "RAY_REDIS_PASSWORD": "canary",
        "https_proxy": "http://me:canary@proxy.site:3128",
        "AWS_SECRET_ACCESS_KEY": "canary",
    }
    told = facts(environ)
    assert "canary" not in json.dumps(told)
    assert told["proxies"] == {"https_proxy": "proxy.site:3128"}
    assert told["ray_variables"] == ["RAY_AUTH_TOKEN", "RAY_REDIS_PASSWORD"]


def test_a_token_that_others_can_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.touch(0o600)
    token.chmod(0o644)
    assert facts({})["token_files"] == [{"path": str(token), "mode": "0644", "owner": "us"}]


def test_a_home_that_is_not_there_or_cannot_be_written_is_told(tmp_path: Path) -> None:
    missing = told_by_a_child(f"export HOME={tmp_path}/away")
    assert missing["home"] == {"path": f"{tmp_path}/away", "is_there": False, "is_writable": True}
    (tmp_path / "file").touch()
    blocked = told_by_a_child(f"export HOME={tmp_path}/file/home")
    assert blocked["home"] == {"path": f"{tmp_path}/file/home", "is_there": False, "is_writable": False}
    # Which nobody can write, not even root.
    read_only = told_by_a_child("unset SHOAL_JOBS_DIR; export HOME=/proc/sys/fs")
    assert read_only["home"] == {"path": "/proc/sys/fs", "is_there": True, "is_writable": False}
    assert not read_only["jobs_folder"]["is_writable"]


def test_packages_that_pythonpath_hides_are_told(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    assert facts({"PYTHONPATH": f":{tmp_path}"})["python"]["shadowed"] == ["ray"]


def test_a_folder_for_temporary_files_that_is_named_comes_first(tmp_path: Path) -> None:
    first, *_ = facts({"TMPDIR": str(tmp_path)})["temp_folders"]
    assert first["path"] == str(tmp_path)
    assert first["bytes"] == len(str(tmp_path))
    assert first["space"]["writable"]


def test_threads_and_daemons_of_a_simulated_proc(tmp_path: Path) -> None:
    me = os.getuid()
    for pid, name, uid, threads in [(1, "init", 0, 1), (7, "raylet", me, 28), (8, "gcs_server", me + 1, 26)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\nThreads:\t{threads}\n")
    (tmp_path / "9").mkdir()  # has just ended
    told = tasks(tmp_path)
    assert told["of_all"] == 55
    assert told["of_user"] == (29 if me == 0 else 28)
    assert told["rays"] == {"ours": 1, "others": 1}
    assert told["threads_max"] is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("ext4", ["rw", "relatime"])),
        ("/homes/me", ("ext4", ["rw", "relatime"])),
        ("/home/me", ("nfs4", ["rw", "relatime"])),
        ("/scratch/big disk/me", ("lustre", ["rw"])),
        ("/tmp", ("xfs", ["rw"])),
    ],
)
def test_the_file_system_of_a_path(path: str, expected: tuple[str, list[str]]) -> None:
    assert mount_of(path, parsed_mounts(MOUNTINFO)) == expected


def test_without_a_list_of_mounts_the_file_system_is_unknown() -> None:
    assert mount_of("/tmp", []) == ("unknown", [])
