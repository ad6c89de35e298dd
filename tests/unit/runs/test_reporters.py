"""The records of a run: complete, without duplicates, repaired after a crash."""

from __future__ import annotations

import csv
import json
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.runs.reporters import ProgressCsv, Reporters, ResultJson, TensorBoardEvents


def result(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "timesteps_total": iteration * 100,
        "learner": {"kl": iteration / 3},
        **more,
    }


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]


def report(folder: Path, start: int, *results: dict[str, Any]) -> None:
    reporters = Reporters(folder, start, start * 100)
    for each in results:
        reporters.report(each)
    reporters.close()


def test_rows_and_lines(tmp_path: Path) -> None:
    report(tmp_path, 0, result(1, episode_reward_mean=float("nan"), returns=[1.0, float("inf")]), result(2, done=True))
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["1", "2"]
    assert float(rows(tmp_path)[0]["learner/kl"]) == 1 / 3
    assert rows(tmp_path)[0]["done"] == ""
    assert rows(tmp_path)[1]["done"] == "True"
    assert lines(tmp_path)[0]["episode_reward_mean"] is None
    assert lines(tmp_path)[0]["returns"] == [1.0, None]
    assert lines(tmp_path)[1]["learner"] == {"kl": 2 / 3}


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_resumed_run_repeats_no_row(tmp_path: Path, kept: int) -> None:
    report(tmp_path, 0, result(1), result(2), result(3))
    report(tmp_path, kept, result(kept + 1, note='a, b\n"c"'), result(kept + 2))
    expected = list(range(1, kept + 3))
    assert [int(row["training_iteration"]) for row in rows(tmp_path)] == expected
    assert [line["training_iteration"] for line in lines(tmp_path)] == expected
    assert rows(tmp_path)[kept]["note"] == 'a, b\n"c"'


@pytest.mark.parametrize("torn", range(1, 40, 3))
def test_a_torn_end_is_repaired(tmp_path: Path, torn: int) -> None:
    report(tmp_path, 0, result(1), result(2))
    for name in ("progress.csv", "result.json"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-torn])
    report(tmp_path, 9, result(10))
    assert [row["training_iteration"] for row in rows(tmp_path)][-1] == "10"
    assert all(None not in row and None not in row.values() for row in rows(tmp_path))
    assert [line["training_iteration"] for line in lines(tmp_path)][-1] == 10


@pytest.mark.parametrize("content", [b"", b"\n\n", b"garbage", b"\xff\xfe\x00", b"a,b\n1,2\n", b"[]\n{}\nnull\n"])
def test_foreign_content_does_not_stop_a_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "progress.csv").write_bytes(content)
    (tmp_path / "result.json").write_bytes(content)
    report(tmp_path, 5, result(6))
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["6"]
    assert [line["training_iteration"] for line in lines(tmp_path)] == [6]


def test_rows_that_a_full_disk_never_takes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reporters = Reporters(tmp_path, 0, 0)
    reporters.report(result(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "result.json").stat().st_size + 10, limits[1]))
    try:
        reporters.report(result(2))
        reporters.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"The last rows of {tmp_path}/result.json are lost" in caplog.text


def test_a_full_disk_delays_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reporters = Reporters(tmp_path, 0, 0)
    reporters.report(result(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "result.json").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        reporters.report(result(2))
        reporters.report(result(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [line["training_iteration"] for line in lines(tmp_path)] == [1]
    reporters.report(result(4))
    reporters.close()
    assert [line["training_iteration"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["1", "2", "3", "4"]
    assert len(caplog.records) == 1
    assert "training continues" in caplog.text


@contextmanager
def full_disk(folder: Path, name: str) -> Iterator[None]:
    """A disk that has no room for more of a file, nor for a larger one in its place."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = folder / name
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path.stat().st_size if path.exists() else 0) + 10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_column_that_appears_after_a_full_disk_loses_no_row_that_waits(tmp_path: Path) -> None:
    reporters = Reporters(tmp_path, 0, 0)
    reporters.report(result(1))
    with full_disk(tmp_path, "progress.csv"):
        reporters.report(result(2))
        reporters.report(result(3))
    reporters.report(result(4, evaluation={"episode_reward_mean": 7.0}))
    reporters.close()
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["1", "2", "3", "4"]
    assert [row["evaluation/episode_reward_mean"] for row in rows(tmp_path)] == ["", "", "", "7.0"]


def test_a_column_that_appears_on_a_full_disk_comes_with_its_row_later(tmp_path: Path) -> None:
    reporters = Reporters(tmp_path, 0, 0)
    reporters.report(result(1))
    with full_disk(tmp_path, "progress.csv"):
        reporters.report(result(2, evaluation={"episode_reward_mean": 7.0}))
        reporters.report(result(3))
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["1"]
    reporters.report(result(4))
    reporters.close()
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["1", "2", "3", "4"]
    assert [row["evaluation/episode_reward_mean"] for row in rows(tmp_path)] == ["", "7.0", "", ""]


def test_a_disk_that_is_full_at_the_first_row_loses_none(tmp_path: Path) -> None:
    first = ProgressCsv(tmp_path / "progress.csv", 0)
    with full_disk(tmp_path, "progress.csv"), pytest.raises(OSError, match="too large"):
        first.report(result(1))
    first.report(result(2))
    first.close()
    assert [row["training_iteration"] for row in rows(tmp_path)] == ["1", "2"]


def test_what_a_full_disk_held_up_is_written_at_the_end(tmp_path: Path) -> None:
    reporters = Reporters(tmp_path, 0, 0)
    reporters.report(result(1))
    with full_disk(tmp_path, "progress.csv"):
        reporters.report(result(2, note="n" * 100))
    reporters.close()
    assert [row["note"] for row in rows(tmp_path)] == ["", "n" * 100]
    assert [line["training_iteration"] for line in lines(tmp_path)] == [1, 2]


def test_reporters_keep_what_was_written_when_the_process_dies(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            reporters: tuple[Any, ...] = (
                ProgressCsv(tmp_path / "progress.csv", 0),
                ResultJson(tmp_path / "result.json", 0),
                TensorBoardEvents(tmp_path, 0),
            )
            for each in reporters:
                each.report(result(1))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(rows(tmp_path)) == len(lines(tmp_path)) == 1
    assert any(len(records(path)) == 3 for path in tmp_path.glob("events.out.tfevents.*"))


def records(path: Path) -> list[bytes]:
    """The TFRecords of a file."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(data[12 : 12 + length])
        data = data[16 + length :]
    return found


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    crc32c = pytest.importorskip("tensorboardX.crc32c").crc32c
    report(tmp_path, 3, result(4, name="text", huge=1e300), result(2**40))
    (path,) = tmp_path.glob("events.out.tfevents.*")
    version, session, *events = [event_pb2.Event.FromString(record) for record in records(path)]
    assert version.file_version == "brain.Event:2"
    assert (session.step, session.session_log.status) == (301, 1)
    assert [event.step for event in events] == [400, 2**40 * 100]
    values = {value.tag: value.simple_value for value in events[0].summary.value}
    assert values["shoal/learner/kl"] == pytest.approx(4 / 3)
    assert set(values) == {"shoal/training_iteration", "shoal/timesteps_total", "shoal/learner/kl", "shoal/huge"}
    data = path.read_bytes()
    crc = crc32c(data[:8])
    assert struct.unpack("<I", data[8:12])[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
