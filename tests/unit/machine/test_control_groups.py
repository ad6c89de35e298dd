"""The control groups of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.machine.control_groups import control_groups


@pytest.mark.parametrize(
    ("listed", "made", "expected"),
    [
        ("0::/job/step", "job/step", ["job/step", "job", "."]),
        ("4:memory:/\n3:pids,cpu:/slurm/job", "pids/slurm/job", ["pids/slurm/job", "pids/slurm", "pids"]),
        ("3:pids:/not/mounted/here", "pids", ["pids"]),
        ("3:cpu,pids:/job", "cpu,pids/job", ["cpu,pids/job", "cpu,pids"]),
        ("0::/../outside", "inside", ["."]),
        ("4:memory:/", "pids", []),
    ],
    ids=["version 2", "version 1", "container", "mounted together", "outside of what is seen", "another controller"],
)
def test_the_control_groups_of_a_process(tmp_path: Path, listed: str, made: str, expected: list[str]) -> None:
    root, of = tmp_path / "cgroup", tmp_path / "listed"
    (root / made).mkdir(parents=True)
    of.write_text(listed + "\n")
    assert [str(folder.relative_to(root)) for folder in control_groups("pids", root, of)] == expected
