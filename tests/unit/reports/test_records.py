"""What a killed driver had no time to write is read from the folders of its trials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.errors import CheckpointError
from shoal.reports.records import new_record as record_of
from shoal.reports.records import read_trials, recovered_trials, trial_folder, write_beginning, write_done, write_trials


def make_trial(folder: Path, number: int, lr: float) -> Path:
    place = folder / trial_folder(number)
    place.mkdir(parents=True)
    write_beginning(place, {"config.lr": lr}, None)
    (place / "result.json").write_text(json.dumps({"score": 10 * lr, "learner": {"kl": 0.1}}) + "\n" + '{"cut')
    return place


def test_trials_that_were_not_written_are_found(tmp_path: Path) -> None:
    write_trials(tmp_path, [record_of(0, 0, {"config.lr": 1.0}, None)])
    make_trial(tmp_path, 0, 1.0)
    make_trial(tmp_path, 2, 2.0)
    (tmp_path / "trials" / "00003").mkdir()  # killed before it wrote a word
    first, other = recovered_trials(tmp_path)
    assert (first.index, first.status, first.settings) == (0, "waiting", {"config.lr": 1.0})
    assert (other.index, other.status, other.settings) == (2, "interrupted", {"config.lr": 2.0})
    assert other.folder == "trials/00002"


def test_an_end_that_was_not_written_is_found(tmp_path: Path) -> None:
    write_trials(tmp_path, [record_of(0, 0, {"config.lr": 1.0}, None)])
    write_done(make_trial(tmp_path, 0, 1.0), "stopped early", "asha: score 10")
    (record,) = recovered_trials(tmp_path)
    assert (record.status, record.reason) == ("stopped early", "asha: score 10")
    assert record.last_result == {"score": 10.0, "learner/kl": 0.1}


def test_what_a_trial_began_with_is_written_once(tmp_path: Path) -> None:
    place = make_trial(tmp_path, 0, 1.0)
    write_beginning(place, {"config.lr": 5.0}, 3)
    assert recovered_trials(tmp_path)[0].settings == {"config.lr": 1.0}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[" + b"0," * (1 << 23), b"{}", b"5", b"[5]"])
def test_records_that_are_none_are_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trials.json").write_bytes(content)
    if content == b"{}":
        assert read_trials(tmp_path) == []
        return
    with pytest.raises(CheckpointError, match=r"trials.json cannot be read"):
        read_trials(tmp_path)


def test_records_without_end_are_a_sentence(tmp_path: Path) -> None:
    with open(tmp_path / "trials.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="has more than"):
        read_trials(tmp_path)
