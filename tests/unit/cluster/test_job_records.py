"""The records of submitted jobs, and their logs while they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cluster.job_records import JobRecord, find, folder_for, log_pieces, make_folder, record, recorded
from shoal.errors import ClusterError, ConfigError


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_JOBS_DIR", str(tmp_path / "jobs"))
    return tmp_path


def submitted(work: Path, job_id: str, when: str = "2026-11-15 21:30:05") -> Path:
    folder = folder_for("ppo")
    make_folder(folder)
    log = str(work / f"ppo-{job_id}.log")
    record(folder, JobRecord(job_id, "pbs", "ppo", 3, str(folder / "job.sh"), str(work), log, when, ["true"]))
    return folder


def test_jobs_are_found_by_every_id_they_have_had(work: Path) -> None:
    first, second = submitted(work, "41"), submitted(work, "43.pbs01", "2026-11-15 21:30:06")
    assert first != second
    assert [folder for folder, _ in recorded()] == [second, first]
    (work / "ppo-41.log.requeues-41").write_text("51.pbs01\n52.pbs01\n")
    for text in ("41", "51", "52", "52.pbs01", "41.other"):
        assert find(text)[0] == first
    assert find("41")[1].ids()[-1] == "52.pbs01"
    assert find("43")[0] == second
    with pytest.raises(ConfigError, match="no job 99 was submitted from here"):
        find("99")


def test_a_torn_record_is_named(work: Path) -> None:
    torn = submitted(work, "41") / "job.json"
    torn.write_text(torn.read_text()[:20])
    with pytest.raises(ClusterError, match=f"{torn} is not the record of a job; remove it"):
        recorded()


def test_a_log_is_read_from_its_late_start_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    writes = [None, b"", b"one\n", b"tw", b"o\n", b"the end\n"]

    def is_over() -> bool:
        text = writes.pop(0)
        if text is not None:
            with log.open("ab") as file:
                file.write(text)
        return not writes

    pieces = list(log_pieces(log, is_over, read_s=0, ask_s=0))
    assert pieces == [b"one\n", b"tw", b"o\n", b"the end\n"]


def test_a_log_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"a first life\n")
    pieces = log_pieces(log, lambda: log.read_bytes() == b"second\n", read_s=0, ask_s=0)
    assert next(pieces) == b"a first life\n"
    log.write_bytes(b"second\n")
    assert list(pieces) == [b"second\n"]
