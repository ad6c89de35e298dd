"""What a run keeps on disk, without a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.experiment import Experiment, experiment_from
from shoal.data.state import Ring, State
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, ShoalError
from shoal.runs import background_writer, row_segments, run_folder
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.lease import holder
from shoal.runs.resuming import finished_iterations
from shoal.runs.run_folder import RunFolder, write_errors_named


def summary(iteration: int) -> dict[str, float]:
    return {"training_iteration": iteration}


@pytest.fixture
def kept(tmp_path: Path) -> RunFolder:
    keys = {"name": "one", "env": "CartPole-v1", "checkpoint_freq": 2, "keep_checkpoints_num": 2}
    return RunFolder(tmp_path, experiment_from(keys), UserCode.at(tmp_path))


def test_it_has_one_writer_and_says_what_is_run(kept: RunFolder) -> None:
    with kept.held():
        assert holder(kept.path) is not None
        with pytest.raises(ShoalError, match="is being written by"), RunFolder(*made_of(kept)).held():
            pass
    assert holder(kept.path) is None
    tree = json.loads((kept.path / "experiment.json").read_text())
    assert (tree["name"], tree["search_path"]) == ("one", [str(kept.path)])


def made_of(kept: RunFolder) -> tuple[Path, Experiment, UserCode]:
    return kept.path, kept._experiment, kept._user_code


def test_an_iteration_is_saved_once_and_told_once(kept: RunFolder) -> None:
    told: list[str] = []
    kept.on_checkpoint = lambda path: told.append(path.name)
    with kept.held():
        assert kept.begin() is None
        for iteration in (1, 2, 3):
            kept.note(summary(iteration), State({"iteration": iteration}))
            kept.save_if_due()
        kept.settle()
        assert told == ["checkpoint_000002"]
        kept.write()  # as from another thread, which calls no hook
        assert told == ["checkpoint_000002"]
        kept.save()
        kept.save()
    assert told == ["checkpoint_000002", "checkpoint_000003"]
    assert kept.newest == checkpoints_of(kept.path)[0]


def test_nothing_is_written_unless_it_is_held(kept: RunFolder) -> None:
    kept.note(summary(1), State({}))
    kept.save()
    assert not checkpoints_of(kept.path)


def test_another_state_takes_the_place_of_a_checkpoint(kept: RunFolder) -> None:
    with kept.held():
        kept.note(summary(4), State({"agent": "own"}))
        kept.save()
    with kept.held():
        start = kept.begin()
        assert start is not None
        kept.replace(start, State({"agent": "taken over"}))
        kept.save()
        assert kept.saved_iteration == 4
    (only,) = checkpoints_of(kept.path)
    assert read_checkpoint(only).state.values == {"agent": "taken over"}


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device; free some space."),
        (errno.EROFS, "Read-only file system; make it writable, or copy it to where you may write."),
        (errno.EACCES, "Permission denied; make it writable, or copy it to where you may write."),
        (errno.EIO, "Input/output error; look at the file system that it is on."),
    ],
)
def test_what_a_disk_refuses_has_its_remedy(kept: RunFolder, number: int, remedy: str) -> None:
    with pytest.raises(CheckpointError) as told, write_errors_named(kept.path):
        raise OSError(number, os.strerror(number))
    assert str(told.value) == f"{kept.path} cannot be written: {remedy}"


def test_what_a_run_has_finished_is_counted(tmp_path: Path) -> None:
    assert finished_iterations(tmp_path) == 0, "there are no results"
    rows = [json.dumps({"training_iteration": number, "note": "n" * 100_000}) for number in range(1, 14)]
    (tmp_path / "result.json").write_text("\n".join(rows) + '\n{"training_iteration": 99')
    assert finished_iterations(tmp_path) == 13


@pytest.fixture
def held_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes nothing until the event is set."""
    free, real = threading.Event(), run_folder.write_checkpoint

    def slow(*given: Any) -> Path:
        assert free.wait(60)
        return real(*given)

    monkeypatch.setattr(run_folder, "write_checkpoint", slow)
    return free


def train(kept: RunFolder, *iterations: int) -> None:
    for iteration in iterations:
        kept.note(summary(iteration), State({"iteration": iteration}))
        kept.save_if_due()


def test_a_slow_disk_does_not_hold_up_training_and_is_told_once(
    kept: RunFolder, held_disk: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background_writer, "PATIENCE_S", 0.01)
    with kept.held():
        train(kept, 1, 2)
        with kept._writer._changed:
            assert kept._writer._changed.wait_for(lambda: kept._writer._next is None, 60)  # its thread has begun
        train(kept, *range(3, 21))  # which would never end if it waited
        assert not checkpoints_of(kept.path)
        held_disk.set()
        kept.settle()
        # The first was being written, and of those that waited the newest is.
        assert [path.name for path in checkpoints_of(kept.path)] == ["checkpoint_000020", "checkpoint_000002"]
    assert caplog.text.count("The disk of") == 1
    assert read_checkpoint(kept.path).state.values == {"iteration": 20}


def test_a_disk_that_keeps_up_gets_every_checkpoint(tmp_path: Path) -> None:
    keys = {"name": "one", "env": "CartPole-v1", "checkpoint_freq": 1}
    kept = RunFolder(tmp_path, experiment_from(keys), UserCode.at(tmp_path))
    with kept.held():
        train(kept, *range(1, 9))
        kept.settle()
    assert len(checkpoints_of(tmp_path)) == 8


def test_a_program_and_the_end_wait_for_the_disk(kept: RunFolder, held_disk: threading.Event) -> None:
    with kept.held():
        train(kept, 1, 2, 3)
        threading.Timer(0.1, held_disk.set).start()
        kept.save()
        assert [path.name for path in checkpoints_of(kept.path)] == ["checkpoint_000003", "checkpoint_000002"]
        times = kept.take_times()
        assert times["save_beside_s"] > 0
        assert kept.take_times() == {"save_s": 0.0, "save_beside_s": 0.0}


def test_what_the_writer_meets_is_told_and_tried_again(
    kept: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, problems = run_folder.write_checkpoint, [OSError(28, "No space left"), CheckpointError("it is read-only.")]

    def failing(*given: Any) -> Path:
        if problems:
            raise problems.pop()
        return real(*given)

    monkeypatch.setattr(run_folder, "write_checkpoint", failing)
    with kept.held():
        for iteration in (2, 4, 6):
            train(kept, iteration)
            kept.settle()
    assert [path.name for path in checkpoints_of(kept.path)] == ["checkpoint_000006"]
    assert caplog.text.count("Training continues, and every save is tried") == 1
    assert "it is read-only." in caplog.text


def test_a_checkpoint_is_not_removed_before_the_hook_is_told(kept: RunFolder) -> None:
    was_there: list[bool] = []
    kept.on_checkpoint = lambda path: was_there.append(path.is_dir())
    with kept.held():
        train(kept, *range(2, 13, 2))
        kept.save()
    assert was_there == [True] * 6
    assert len(checkpoints_of(kept.path)) == 2


def rows(begin: int, end: int) -> State:
    """A part of a ring of 64 places, whose rows have their numbers in them."""
    ring = Ring("a", begin, end, 64, ("x",))
    pieces = [np.arange(first, last, dtype=np.float64)[:, None] for first, last in ring.stretches()]
    arrays = {f"learner/replay.x.{number}": piece for number, piece in enumerate(pieces)}
    return State({"end": end}, arrays, rings={"learner/replay": ring})


def test_checkpoints_share_rows_and_each_is_whole_alone(
    kept: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 64)  # eight rows
    with kept.held():
        for iteration in range(1, 21):
            end = 7 * iteration
            kept.note(summary(iteration), rows(max(0, end - 50), end))
            kept.save_if_due()
        kept.settle()
        newest, before = checkpoints_of(kept.path)
        inodes = [{file.stat().st_ino for file in (path / "replay").iterdir()} for path in (newest, before)]
        assert len(inodes[0] & inodes[1]) >= len(inodes[0]) - 3
        # Whoever removes one of the files that were to be shared does not lose the next checkpoint.
        next((newest / "replay").iterdir()).unlink()
        kept.note(summary(21), rows(97, 147))
        kept.save()
    copy = tmp_path / "moved away"
    shutil.copytree(checkpoints_of(kept.path)[0], copy)
    assert not before.exists()  # which the newest shares files with
    for path in (copy, checkpoints_of(kept.path)[0]):
        state = read_checkpoint(path).state
        assert np.concatenate([state.arrays["learner/replay.x.0"], state.arrays["learner/replay.x.1"]])[
            :, 0
        ].tolist() == [*range(97, 147)]
    with pytest.raises(CheckpointError, match="is missing"):
        read_checkpoint(newest)


def test_where_there_are_no_links_rows_are_copied(kept: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 64)

    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with kept.held():
        for iteration in (2, 4):
            kept.note(summary(iteration), rows(0, 10 * iteration))
            kept.save()
    for path, end in zip(checkpoints_of(kept.path), (40, 20), strict=True):
        assert len(read_checkpoint(path).state.arrays["learner/replay.x.0"]) == end


def test_a_resumed_run_writes_only_new_rows(kept: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 64)
    with kept.held():
        kept.note(summary(2), rows(0, 40))
        kept.save()
    again = RunFolder(*made_of(kept))
    with again.held():
        start = again.begin()
        assert start is not None
        inodes = {file.stat().st_ino for file in (start.path / "replay").iterdir()}
        ring = start.state.rings["learner/replay"]
        follows = replace(rows(0, 48).rings["learner/replay"], numbering="b", follows=(ring.numbering, 40))
        other = replace(follows, numbering="c", follows=("another", 40))
        for iteration, number, shared in ((4, follows, 5), (6, other, 0)):
            again.note(summary(iteration), replace(rows(0, 48), rings={"learner/replay": number}))
            again.save()
            newest = {file.stat().st_ino for file in (checkpoints_of(again.path)[0] / "replay").iterdir()}
            assert len(inodes & newest) == shared


def test_the_writer_keeps_no_memory_of_what_it_has_written() -> None:
    class Work:
        def __call__(self) -> None:
            pass

    writer, work = background_writer.BackgroundWriter("one"), Work()
    known = weakref.ref(work)
    writer.give(work)
    del work
    writer.wait()
    assert known() is None
    writer.close()
    writer.give(lambda: None)  # it may be used again
    writer.close()
