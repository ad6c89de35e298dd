"""One writer per run folder, with real processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fake_runs import fake_run

from shoal.errors import ShoalError
from shoal.reports.followed_run import FollowedRun
from shoal.reports.run_list import listed
from shoal.runs.lease import LEASE, LOST_AFTER_S, Lease, LeaseWatch, holder, this_process

TAKE = """
import sys
from pathlib import Path
from shoal.errors import ShoalError
from shoal.runs.lease import Lease
sys.stdin.readline()
try:
    lease = Lease(Path(sys.argv[1]))
    sys.stdout.write("won\\n")
except ShoalError as error:
    sys.stdout.write(f"{error}\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


def contenders(folder: Path, number: int) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", TAKE, str(folder)]
    return [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)]


def race(children: list[subprocess.Popen[str]]) -> list[str]:
    """Start all at once, hear all, kill all while they hold what they have."""
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    said = [child.stdout.readline() for child in children if child.stdout is not None]
    for child in children:
        child.kill()
        child.communicate()
    return said


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_one_wins(tmp_path: Path, stale: bool) -> None:
    for _ in range(4 if stale else 2):
        # From the second round on, all find the lease of a process that was killed.
        said = race(contenders(tmp_path, 12))
        assert said.count("won\n") == 1
        assert sum("is being written by process" in line for line in said) == 11
        if not stale:
            (tmp_path / LEASE).unlink()


def test_a_lease_ends(tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        owner = holder(tmp_path)
        assert owner is not None
        assert owner.pid == os.getpid()
        lease.confirm()
        with pytest.raises(ShoalError, match=r"is being written by .*: stop it first"):
            Lease(tmp_path)
    assert holder(tmp_path) is None
    with Lease(tmp_path):
        pass


def write_lease(folder: Path, age_s: float, **changes: object) -> None:
    path = folder / LEASE
    path.write_text(json.dumps(asdict(replace(this_process(), **changes))))  # type: ignore[arg-type]
    stamp = path.stat().st_mtime - age_s
    os.utime(path, (stamp, stamp))


def test_another_process_with_the_same_pid_is_not_the_owner(tmp_path: Path) -> None:
    write_lease(tmp_path, 0, started="1")
    Lease(tmp_path).release()


@pytest.mark.parametrize("elsewhere", [{"boot": "another", "host": "n0042"}, {"namespace": "pid:[1]"}])
def test_an_owner_elsewhere_is_lost_after_a_while(
    tmp_path: Path, elsewhere: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write_lease(tmp_path, LOST_AFTER_S / 2, **elsewhere)
    with pytest.raises(ShoalError, match=r"is being written by"):
        Lease(tmp_path)
    write_lease(tmp_path, LOST_AFTER_S * 2, **elsewhere)
    Lease(tmp_path).release()
    assert "is taken over from" in caplog.text


def test_who_only_looks_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, state in ((1, "running"), (LOST_AFTER_S * 2, "killed")):
        folder = fake_run(tmp_path, f"age{age:.0f}", outcome=None)
        write_lease(folder, age, boot="another", host="n0042")
        before = folder.stat().st_mtime_ns
        monkeypatch.setattr("pathlib.Path.touch", lambda *_, **__: pytest.fail("it writes"))
        found = listed(folder)
        assert found is not None
        assert found.state == state
        assert FollowedRun(folder).is_written == (state == "running")
        assert folder.stat().st_mtime_ns == before
        monkeypatch.undo()


def test_a_disk_that_is_away_for_a_while_tells_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, never = LeaseWatch(), LeaseWatch()
    with Lease(tmp_path):
        assert watch.is_written(tmp_path)
        now, lstat = time.monotonic(), Path.lstat

        def stale(path: Path) -> os.stat_result:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))

        monkeypatch.setattr(Path, "lstat", stale)
        assert watch.is_written(tmp_path)
        assert not never.is_written(tmp_path)
        monkeypatch.setattr(time, "monotonic", lambda: now + LOST_AFTER_S + 1)
        assert not watch.is_written(tmp_path)
        monkeypatch.setattr(Path, "lstat", lstat)
        assert watch.is_written(tmp_path)
    assert not watch.is_written(tmp_path)


def test_a_torn_lease_waits_for_its_age(tmp_path: Path) -> None:
    (tmp_path / LEASE).write_text('{"host": "n00')
    with pytest.raises(ShoalError, match="unknown host"):
        Lease(tmp_path)
    os.utime(tmp_path / LEASE, (1, 1))
    Lease(tmp_path).release()


def test_who_was_taken_over_stops_writing(tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        write_lease(tmp_path, 0)
        with pytest.raises(ShoalError, match="was taken over by process"):
            lease.confirm()
    assert holder(tmp_path) is not None
