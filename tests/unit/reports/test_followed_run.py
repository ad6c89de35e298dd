"""A run that is followed from elsewhere: half lines, files cut back and replaced, folders that go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fake_runs import fake_run

from shoal.reports.followed_run import FollowedRun
from shoal.runs.atomic_files import replace_file
from shoal.runs.lease import Lease
from shoal.runs.outcomes import Outcome, write_outcome


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def test_only_what_is_new_and_whole(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, iterations=2)
    append(folder / "log.txt", "2026-11-17 17:53:05,156 WARNING an old warning\n")
    run = FollowedRun(folder)
    first = run.look()
    assert ([r["training_iteration"] for r in first.results], first.is_again, first.warnings) == ([1, 2], True, [])
    append(folder / "result.json", '{"training_iteration": 3}\n{"training_it')
    append(
        folder / "log.txt", "2026-11-17 17:53:05,156 INFO no\n2026-11-17 17:53:06,156 WARNING it is slow\nTraceback\n"
    )
    second = run.look()
    assert ([r["training_iteration"] for r in second.results], second.is_again) == ([3], False)
    assert second.warnings == ["Warning: it is slow"]
    append(folder / "result.json", 'eration": 4}\nnonsense\n')
    assert [r["training_iteration"] for r in run.look().results] == [4]
    assert run.look().results == []


def test_a_file_that_is_cut_back_or_replaced_is_read_again(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, iterations=3)
    run = FollowedRun(folder)
    run.look()
    file = folder / "result.json"
    lines = file.read_bytes().splitlines(keepends=True)
    replace_file(file, b"".join(lines[:2]))
    again = run.look()
    assert ([r["training_iteration"] for r in again.results], again.is_again) == ([1, 2], True)
    file.unlink()
    assert run.look().results == []
    file.write_text(json.dumps({"training_iteration": 9}) + "\n")
    assert [r["training_iteration"] for r in run.look().results] == [9]


def test_how_it_stands(tmp_path: Path) -> None:
    folder = fake_run(tmp_path, outcome=None)
    run = FollowedRun(folder)
    lease = Lease(folder)
    assert run.is_written
    lease.release()
    assert not run.is_written
    assert run.ending() == ("killed", "")
    write_outcome(folder, Outcome("failed", "EnvError: no\nmore"))
    assert run.ending() == ("failed", "EnvError: no")
    shutil.rmtree(folder)
    assert run.look().results == []
    assert run.ending() == (None, "")
