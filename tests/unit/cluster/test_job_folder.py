"""The job's folder: for this user alone, whole or not there."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from shoal.cluster.job_folder import Notice, make_job_folder, note_event, notice_of, publish, published, withdraw
from shoal.errors import ClusterError

NOTICE = Notice(("10.0.0.1", "127.0.0.1"), 4711, "a secret")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_notice_is_published_and_withdrawn(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "one"
    make_job_folder(folder)
    assert mode(folder) == 0o700
    assert published(folder) is None
    publish(folder, NOTICE)
    assert published(folder) == NOTICE
    assert mode(folder / "head.json") == 0o600
    assert [path.name for path in folder.iterdir()] == ["head.json"]
    withdraw(folder)
    withdraw(folder)
    assert published(folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"addresses": 1, "port": 1, "secret": ""}'])
def test_half_a_notice_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "head.json").write_text(text)
    (tmp_path / "head.json").chmod(0o600)
    assert published(tmp_path) is None
    with pytest.raises((ValueError, TypeError)):
        notice_of(text)


def test_a_notice_that_others_can_read_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, NOTICE)
    (tmp_path / "head.json").chmod(0o644)
    with pytest.raises(ClusterError, match="remove it"):
        published(tmp_path)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ClusterError, match="--job-dir"):
        make_job_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match=r"file/job cannot be made .* --job-dir"):
        make_job_folder(tmp_path / "file" / "job")


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    note_event(tmp_path, "node lost", host="n2")
    note_event(tmp_path, "node up", host="n2")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(line["event"], line["host"]) for line in lines] == [("node lost", "n2"), ("node up", "n2")]
