"""What a run keeps on disk, in detail: what is told when, what is written where, and what becomes of a lost folder."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_folders import SOON_S, Disk, made, note, numbers, train
from numbered_rows import SEGMENT_BYTES, numbered

from shoal.data.state import State
from shoal.errors import CheckpointError, RowsLost
from shoal.runs import background_writer, row_segments, run_folder
from shoal.runs.chain import Chain, read_chain
from shoal.runs.checkpoint_folders import MANIFEST, checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.lease import LEASE
from shoal.runs.lost_processes import MARKS_FILE
from shoal.runs.outcomes import Outcome
from shoal.runs.run_folder import RunFolder, SaveTimes


@pytest.fixture
def kept(tmp_path: Path) -> RunFolder:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return made(tmp_path / "runs" / "one")


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        now = self.now
        self.then()
        return now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    told = Clock()
    monkeypatch.setattr(run_folder, "monotonic", told)
    monkeypatch.setattr(background_writer, "monotonic", told)
    return told


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made_here = Disk()
    monkeypatch.setattr(run_folder, "write_checkpoint", made_here)
    yield made_here
    made_here.is_free.set()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was said since this was asked last."""

    def asked() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return asked


def test_what_is_held_is_cleaned_up_before_and_after(kept: RunFolder) -> None:
    (kept.path / ".tmp-checkpoint_000003-5-ab").mkdir()
    with kept.held():
        assert not list(kept.path.glob(".tmp-*"))
        assert (kept.path / MARKS_FILE).exists()
        train(kept, 2)
    assert not [thread for thread in threading.enumerate() if thread.name == "shoal-checkpoints"]
    assert numbers(kept.path) == [2]
    left = [name for name in sorted(os.listdir(kept.path)) if not name.startswith(LEASE)]
    assert left == ["checkpoint_000002", "config.yaml", "experiment.json"]


def test_the_experiment_is_written_down_in_one_form(kept: RunFolder) -> None:
    with kept.held():
        pass
    text = (kept.path / "experiment.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1)
    assert (kept.path / "config.yaml").read_text().startswith("# yaml-language-server: $schema=")
    assert "\none:\n  run: PPO\n" in (kept.path / "config.yaml").read_text()


def test_a_new_one_has_saved_nothing(kept: RunFolder) -> None:
    assert (kept.saved_iteration, kept.last_save_s, kept.newest) == (0, 0.0, None)
    assert SaveTimes() == SaveTimes(blocked=0.0, written=0.0)
    with kept.held():
        kept.save_if_due()
        kept.save()  # there is nothing to save
        kept.link()
        assert kept.begin() is None
        assert kept.saved_iteration == 0
        note(kept, 1)
        kept.save()
    assert (numbers(kept.path), kept.saved_iteration) == ([1], 1)


def test_a_run_goes_on_from_what_is_good_or_says_that_nothing_is(kept: RunFolder) -> None:
    with kept.held():
        for iteration in (3, 4):
            note(kept, iteration)
            kept.save()
    (kept.path / "checkpoint_000004" / "state.json").write_text("damaged")
    again = made(kept.path)
    assert again.newest == kept.path / "checkpoint_000004"
    with again.held():
        start = again.begin()
        assert start is not None
        assert (start.path, again.newest, again.saved_iteration) == (
            kept.path / "checkpoint_000003",
            kept.path / "checkpoint_000003",
            3,
        )
        (kept.path / "checkpoint_000003" / MANIFEST).unlink()
        with pytest.raises(
            CheckpointError, match=r"no checkpoint of .* can be read; start another run: shoal train -f .* --new"
        ):
            again.begin()


def test_no_checkpoint_is_due_where_none_is_wanted(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "one").mkdir()
    kept = made(tmp_path / "one", checkpoint_freq=0)
    with kept.held():
        train(kept, 1, 2, 3)
        kept.settle()
        assert numbers(kept.path) == []
    (tmp_path / "three").mkdir()
    third = made(tmp_path / "three", checkpoint_freq=3, keep_checkpoints_num=None)
    with third.held():
        train(third, 3)
        third.settle()
        train(third, 3, 4, 5)  # the first of which is a checkpoint
        third.settle()
        train(third, 6)
    assert numbers(third.path) == [6, 3]
    assert disk.writers == ["shoal-checkpoints"] * 2


def test_nobody_writes_who_does_not_hold_it(kept: RunFolder, told: Callable[[], list[str]]) -> None:
    train(kept, 2)
    kept.settle()
    kept.write()
    kept.leave_word(Outcome("stopped", "it is done"))
    assert os.listdir(kept.path) == []
    assert told() == []
    with kept.held():
        for iteration in (3, 4, 5):
            note(kept, iteration)
            kept.write()
    kept.settle()
    assert numbers(kept.path) == [5, 4, 3], "it is somebody else's by now"


@pytest.mark.parametrize(
    ("needed", "available", "is_beside"),
    [
        (5, 0, True),
        (64 << 20, 0, True),
        ((64 << 20) + 1, 0, False),
        (128 << 20, 512 << 20, True),
        ((128 << 20) + 1, 512 << 20, False),
        (128 << 20, 1 << 40, True),
    ],
)
def test_training_goes_on_if_there_is_memory_for_a_copy(
    kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch, needed: int, available: int, is_beside: bool
) -> None:
    monkeypatch.setattr(run_folder, "copied_bytes", lambda *_: needed)
    monkeypatch.setattr(run_folder, "available_memory", lambda: available)
    heard: list[str] = []
    kept.on_checkpoint = lambda path: heard.append(path.name)
    with kept.held():
        train(kept, 2)
        assert is_beside or heard == ["checkpoint_000002"]
        kept.settle()
    assert disk.writers == ["shoal-checkpoints" if is_beside else threading.current_thread().name]
    assert heard == ["checkpoint_000002"]


def test_what_is_written_at_once_is_no_copy(kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    really = run_folder.snapshot

    def noted(*given: Any, copies: bool = True) -> Any:
        asked.append(copies)
        return really(*given, copies=copies)

    monkeypatch.setattr(run_folder, "snapshot", noted)
    disk.problems = [RowsLost("gone")]
    with kept.held():
        note(kept, 1)
        kept.save()
        assert asked == [False, False]
        train(kept, 2)
        kept.settle()
    assert asked == [False, False, True]
    assert numbers(kept.path) == [2, 1]


def test_times_are_those_of_training_and_of_the_disk(kept: RunFolder, disk: Disk, clock: Clock) -> None:
    def five_seconds() -> None:
        clock.now += 5

    disk.after = five_seconds
    clock.now = 1000.0
    with kept.held():
        note(kept, 1)
        kept.save()
        assert kept.last_save_s == 5
        assert kept.take_times() == {"save_s": 5, "save_beside_s": 5}
        disk.is_free.clear()
        train(kept, 2)
        assert kept.take_times() == {"save_s": 0, "save_beside_s": 0}
        clock.then = disk.is_free.set
        kept.settle()
        assert kept.take_times() == {"save_s": 5, "save_beside_s": 5}
        monkey = kept.on_checkpoint
        kept.on_checkpoint = lambda _: five_seconds()
        train(kept, 4)
        kept.wait()
        train(kept, 5)
        kept.on_checkpoint = monkey
        assert kept.take_times() == {"save_s": 5, "save_beside_s": 5}, "the user's hook holds it up too"


def test_a_disk_that_is_full_is_told_of_after_ever_longer_times(
    kept: RunFolder, disk: Disk, clock: Clock, told: Callable[[], list[str]]
) -> None:
    def fails_at(now: float) -> list[str]:
        clock.now = now
        disk.problems = [CheckpointError("It is full.")]
        train(kept, kept.saved_iteration + 2)
        kept.settle()
        return [line.rpartition(" reminder is in ")[2] for line in told()]

    def works_at(now: float) -> None:
        clock.now = now
        train(kept, kept.saved_iteration + 2)
        kept.settle()

    with kept.held():
        assert fails_at(0.0) == ["10 min."]
        works_at(0.2)
        assert fails_at(0.3) == ["10 min."], "it had room meanwhile"
        assert fails_at(600.2) == []
        assert fails_at(600.3) == ["20 min."]
        assert fails_at(1800.2) == []
        assert fails_at(1800.3) == ["40 min."]
        assert fails_at(4200.2) == []
        works_at(4200.2)
        assert fails_at(4200.2) == ["10 min."]
    assert told() == []


def test_what_fails_at_once_is_told_too(
    kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(run_folder, "copied_bytes", lambda *_: 1 << 60)
    disk.problems = [CheckpointError("It is full."), CheckpointError("It is full.")]
    with kept.held():
        train(kept, 2)
        assert [line.partition(" Training")[0] for line in told()] == ["It is full."]
        with pytest.raises(CheckpointError, match=r"It is full\."):
            kept.save()  # who asks for it wants to know
        train(kept, 4)
    assert numbers(kept.path) == [4]


def test_what_nobody_foresaw_is_told_too(kept: RunFolder, disk: Disk, told: Callable[[], list[str]]) -> None:
    disk.problems = [RuntimeError("odd")]
    with kept.held():
        train(kept, 2)
        kept.settle()
    (line,) = told()
    assert line.startswith("a checkpoint could not be written: RuntimeError: odd. Training continues")


def test_a_disk_is_slow_after_ten_seconds(
    kept: RunFolder, disk: Disk, clock: Clock, told: Callable[[], list[str]]
) -> None:
    disk.is_free.clear()
    with kept.held():
        train(kept, 2)
        with kept._writer._changed:
            assert kept._writer._changed.wait_for(lambda: kept._writer._next is None, SOON_S)
        clock.now = 10.0
        train(kept, 3)
        assert told() == []
        clock.now = 10.5
        train(kept, 5)
        (line,) = told()
        assert line.startswith(f"The disk of {kept.path} is slow: a checkpoint has been written for 10 s. Training")
        clock.now = 20.0
        train(kept, 7)
        assert told() == [], "once is enough"
        disk.is_free.set()
        kept.settle()


def test_who_waits_for_a_slow_disk_says_so(kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "SLOW_S", 0.01)

    class Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            disk.is_free.set()

    freeing = Freeing()
    logging.getLogger("shoal.runs").addHandler(freeing)
    try:
        disk.is_free.clear()
        with kept.held():
            train(kept, 2)
            kept.settle()
            assert disk.is_free.is_set()
            assert numbers(kept.path) == [2]
    finally:
        logging.getLogger("shoal.runs").removeHandler(freeing)


def test_what_waits_is_written_before_what_a_program_saves(
    kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_writer, "PATIENCE_S", SOON_S)
    with kept.held():
        disk.is_free.clear()
        train(kept, 2)
        with kept._writer._changed:
            assert kept._writer._changed.wait_for(lambda: kept._writer._next is None, SOON_S)
        train(kept, 4)
        note(kept, 5)
        threading.Timer(0.02, disk.is_free.set).start()
        kept.write()
        assert (disk.writers[:2], len(disk.writers)) == (["shoal-checkpoints"] * 2, 3)
        disk.is_free.clear()
        train(kept, 6)
        with kept._writer._changed:
            assert kept._writer._changed.wait_for(lambda: kept._writer._next is None, SOON_S)
        train(kept, 8)
        start = read_checkpoint(kept.path / "checkpoint_000005")
        threading.Timer(0.02, disk.is_free.set).start()
        kept.replace(start, State({"iteration": "another"}))
        assert kept.saved_iteration == 5
        kept.settle()
        assert kept.saved_iteration == 5
    assert disk.writers[3:5] == ["shoal-checkpoints"] * 2


def test_what_is_too_many_goes_when_its_hook_has_been_told(kept: RunFolder) -> None:
    heard: list[str] = []
    kept.on_checkpoint = lambda path: heard.append(path.name)
    with kept.held():
        for first, told_by in ((1, kept.save), (4, kept.settle)):
            for iteration in range(first, first + 3):
                note(kept, iteration)
                kept.write()
            assert numbers(kept.path)[:3] == [first + 2, first + 1, first], "nobody was told"
            told_by()
            assert numbers(kept.path) == [first + 2, first + 1]
        for iteration in (8, 10, 12, 14):
            train(kept, iteration)  # which tells of the one before
            kept.wait()
        assert heard[-1] == "checkpoint_000012"
        train(kept, 15)
        assert heard[-1] == "checkpoint_000014"
        assert numbers(kept.path) == [14, 12], "and its writer removes those before"


def test_nothing_goes_before_something_newer_is_surely_there(
    kept: RunFolder, disk: Disk, told: Callable[[], list[str]]
) -> None:
    with kept.held():
        for iteration in (1, 2, 3):
            note(kept, iteration)
            kept.write()
    again = made(kept.path)
    with again.held():
        again.begin()
        again.settle()
        assert numbers(kept.path) == [3, 2, 1]
        note(again, 4)
        again.save()
        assert numbers(kept.path) == [4, 3]

        def not_synced() -> None:
            raise CheckpointError("It is written, and may be gone after a power failure.")

        disk.after = not_synced
        train(again, 6)
        again.settle()
        assert numbers(kept.path) == [6, 4, 3]
        assert len(told()) == 1


def test_after_an_error_of_the_disk_rows_are_shared_as_before(
    kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", SEGMENT_BYTES)
    with kept.held():
        note(kept, 2, numbered(0, 32))
        kept.save()
        disk.problems = [CheckpointError("It is full.")]
        note(kept, 4, numbered(0, 40))
        kept.save_if_due()
        kept.settle()
        note(kept, 6, numbered(0, 48))
        kept.save_if_due()
        kept.settle()
    one, two = ({file.stat().st_ino for file in (path / "replay").iterdir()} for path in checkpoints_of(kept.path))
    assert len(one & two) == 4


def test_rows_that_the_writer_has_lost_are_written_at_once(
    kept: RunFolder, disk: Disk, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", SEGMENT_BYTES)
    with kept.held():
        note(kept, 2, numbered(0, 32))
        kept.save()
        next((kept.path / "checkpoint_000002" / "replay").iterdir()).unlink()
        note(kept, 4, numbered(0, 40))
        kept.save_if_due()
        kept.settle()
        assert numbers(kept.path) == [4, 2]
        main = threading.current_thread().name
        assert disk.writers == [main, "shoal-checkpoints", main], "it knows that there is nothing to share"
    state = read_checkpoint(kept.path / "checkpoint_000004").state
    assert state.arrays["r.x.0"][:, 0].tolist() == [*range(40)]
    assert told() == []


def chained(iteration: int, weight: float = 1.0) -> State:
    values = {"training_iteration": iteration, "timesteps_total": iteration, "env_failures_total": 0,
              "policy": {"rng": 1}, "learner": {}, "episodes": {"total": 0}}  # fmt: skip
    return State(values, {"policy/params": np.full(3, weight, np.float32)})


def test_a_receipt_is_on_the_disk_before_its_checkpoint(kept: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    with kept.held():
        note(kept, 1, chained(1))
        kept.link()  # there is no chain
        kept.chain = Chain(kept.path, 0, {"seed": 1})
        note(kept, 1)
        kept.link()  # what is no training has no receipt
        note(kept, 1, chained(1))
        kept.link()
        kept.link()
        note(kept, 2, chained(2))
        monkeypatch.setattr(os, "fsync", noted)
        kept.save()
        assert done.index("chain.jsonl") < done.index("state.json")
        before = read_chain(kept.path)
        kept.replace(read_checkpoint(kept.path), chained(2, weight=2.0))
        after = read_chain(kept.path)
        kept.replace(read_checkpoint(kept.path), State({"no": "training"}))
        kept.chain.close()
    assert before is not None
    assert after is not None
    assert [*before.links] == [*after.links] == [1, 2]
    assert before.links[1] == after.links[1]
    assert before.links[2].differing(after.links[2]) == ["weights"]


def test_who_takes_the_place_of_a_checkpoint_is_told_at_once(kept: RunFolder) -> None:
    heard: list[str] = []
    with kept.held():
        note(kept, 3)
        kept.save()
        kept.on_checkpoint = lambda path: heard.append(path.name)
        kept.replace(read_checkpoint(kept.path), State({"agent": "another"}))
        assert heard == ["checkpoint_000003"]
        kept.chain = None
        kept.replace(read_checkpoint(kept.path), chained(3))
    assert read_checkpoint(kept.path).state.values == chained(3).values
