"""incidents.jsonl as anybody may have written it."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from shoal.data.batch import Incident
from shoal.runs import incidents
from shoal.runs.incidents import FILE, append_incidents, read_incidents

ENTRY = json.dumps({"number": 1, "cause": "it is torn"}).encode()


def test_what_is_no_incident_is_left_out(tmp_path: Path) -> None:
    assert read_incidents(tmp_path) == []
    lines = (b"[" * 100_000, b"{", ENTRY, b"5", b"\xff")
    (tmp_path / FILE).write_bytes(b"\n".join(lines))
    assert [entry["number"] for entry in read_incidents(tmp_path)] == [1]


def test_a_link_or_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to("/dev/zero")
    assert read_incidents(tmp_path) == []


def test_a_file_without_end_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "LIMIT", 1 << 20)
    monkeypatch.setattr(incidents, "LINE_LIMIT", 1 << 16)
    with open(tmp_path / FILE, "wb") as file:
        file.write(ENTRY + b"\n")
        file.truncate(1 << 40)
    assert [entry["number"] for entry in read_incidents(tmp_path)] == [1]


def incident() -> Incident:
    return Incident(0, 1, 7, 3, 3, "1", "it diverged", "")


def test_a_line_that_a_full_disk_cut_off_does_not_take_the_next_with_it(tmp_path: Path) -> None:
    append_incidents(tmp_path, [incident()], 0, training_iteration=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / FILE).stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_incidents(tmp_path, [incident()], 1, training_iteration=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append_incidents(tmp_path, [incident()], 2, training_iteration=3)
    assert [entry["number"] for entry in read_incidents(tmp_path)] == [1, 3]


def test_a_line_that_a_kill_cut_off_does_not_take_the_next_with_it(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(ENTRY + b"\n" + ENTRY[:20])
    append_incidents(tmp_path, [incident()], 1, training_iteration=2)
    assert [entry["number"] for entry in read_incidents(tmp_path)] == [1, 2]
