"""A run whose folder is taken over, moved or removed while it trains: what memory has is saved, or it says why."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kept_folders import Disk, made, note, numbers, train

from shoal.data.state import State
from shoal.errors import CheckpointError, FolderGone, ShoalError
from shoal.runs import run_folder
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.lease import LEASE
from shoal.runs.outcomes import Outcome, read_outcome
from shoal.runs.run_folder import RunFolder, write_errors_named


@pytest.fixture
def kept(tmp_path: Path) -> RunFolder:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return made(tmp_path / "runs" / "one")


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


def test_how_it_ended_is_left_where_it_is_ours(kept: RunFolder) -> None:
    outcome = Outcome("stopped", "it is done")
    with kept.held():
        kept.leave_word(outcome)
        assert read_outcome(kept.path) == outcome
        (kept.path / "outcome.json").unlink()
        taken_over(kept)
        kept.leave_word(outcome)
        assert read_outcome(kept.path) is None


def taken_over(kept: RunFolder) -> None:
    lease = json.loads((kept.path / LEASE).read_text())
    (kept.path / LEASE).write_text(json.dumps({**lease, "nonce": "another"}))


def test_a_folder_that_was_taken_over_is_written_no_more(kept: RunFolder, told: Callable[[], list[str]]) -> None:
    with kept.held():
        kept.confirm()
        taken_over(kept)
        with pytest.raises(ShoalError, match="was taken over by"):
            kept.confirm()
        train(kept, 2)
        kept.settle()
        (line,) = told()
        assert "was taken over by" in line
        with pytest.raises(ShoalError, match="was taken over by"):
            kept.save()
        assert numbers(kept.path) == []


def test_a_run_that_never_began_leaves_nothing(kept: RunFolder) -> None:
    beside = kept.path.parent / "two"
    beside.mkdir()
    kept.remove()
    assert [*kept.path.parent.iterdir()] == [beside]
    made(beside).remove()
    assert not beside.parent.exists()


def test_a_moved_folder_is_written_where_it_is(kept: RunFolder, told: Callable[[], list[str]], disk: Disk) -> None:
    place = kept.path
    with kept.held():
        note(kept, 1)
        kept.save()
        note(kept, 2)
        place.rename(place.parent / "moved")
        kept.save_if_due()
        kept.settle()
        assert told() == [], "what the writer has met is found out by who asks"
        with pytest.raises(FolderGone, match=f"Its last iteration is saved in {place.parent}/moved/checkpoint_000002"):
            kept.save()
        assert kept.path == place.parent / "moved"
        kept.leave_word(Outcome("failed", "it was moved"))
        assert read_outcome(kept.path) == Outcome("failed", "it was moved", iteration=2)
        assert (kept.newest, kept.saved_iteration) == (kept.path / "checkpoint_000002", 2)
        before = len(disk.writers)
        (kept.path / LEASE).unlink()
    assert numbers(place.parent / "moved") == [2, 1]
    assert len(disk.writers) == before
    assert not place.exists()


def test_a_moved_folder_that_has_it_all_is_not_written_again(kept: RunFolder, disk: Disk) -> None:
    place = kept.path
    with kept.held():
        note(kept, 1)
        kept.save()
        config = (place / "config.yaml").stat().st_ino
        place.rename(place.parent / "moved")
        with pytest.raises(FolderGone, match=f"Its last iteration is saved in {place.parent}/moved/checkpoint_000001"):
            kept.confirm()
    assert len(disk.writers) == 1
    assert (place.parent / "moved" / "config.yaml").stat().st_ino == config


@pytest.mark.parametrize("how", ["removed", "emptied", "with all above it"])
def test_a_folder_that_is_gone_is_made_anew_for_what_memory_has(kept: RunFolder, how: str) -> None:
    with kept.held():
        note(kept, 1)
        kept.save()
        if how == "emptied":
            for name in os.listdir(kept.path):
                shutil.rmtree(kept.path / name) if (kept.path / name).is_dir() else (kept.path / name).unlink()
        else:
            shutil.rmtree(kept.path if how == "removed" else kept.path.parent)
        with pytest.raises(FolderGone, match=f"Its last iteration is saved in {kept.path}/checkpoint_000001"):
            kept.confirm()
        assert (kept.newest, kept.saved_iteration) == (kept.path / "checkpoint_000001", 1)
        kept.leave_word(Outcome("failed", "it was gone"))
        assert read_outcome(kept.path) == Outcome("failed", "it was gone", iteration=1)
    assert LEASE not in os.listdir(kept.path)
    assert read_checkpoint(kept.path).state.values == {"iteration": 1}
    assert {"config.yaml", "experiment.json"} <= {*os.listdir(kept.path)}


def test_what_took_the_place_of_a_checkpoint_is_what_memory_has(kept: RunFolder) -> None:
    with kept.held():
        note(kept, 3)
        kept.save()
        kept.replace(read_checkpoint(kept.path), State({"agent": "another"}))
        shutil.rmtree(kept.path)
        with pytest.raises(FolderGone, match="Its last iteration is saved"):
            kept.confirm()
    assert read_checkpoint(kept.path).state.values == {"agent": "another"}


def test_a_folder_that_is_gone_before_the_first_iteration_stays_gone(kept: RunFolder) -> None:
    with kept.held():
        shutil.rmtree(kept.path)
        with pytest.raises(FolderGone) as caught:
            kept.confirm()
        assert "iteration" not in str(caught.value)
        assert kept.newest is None
    assert not kept.path.exists()


def test_where_nothing_can_be_saved_it_says_why(kept: RunFolder, disk: Disk) -> None:
    with kept.held():
        note(kept, 1)
        shutil.rmtree(kept.path)
        disk.problems = [CheckpointError("It is full")]
        with pytest.raises(FolderGone, match=r"Its last iteration could not be saved: It is full\."):
            kept.confirm()
        assert (kept.newest, kept.saved_iteration) == (None, 0)


def test_what_somebody_else_has_put_in_its_place_stays(kept: RunFolder) -> None:
    with kept.held():
        note(kept, 1)
        kept.path.rename(kept.path.parent / "its own")
        shutil.copytree(kept.path.parent / "its own", kept.path)
        shutil.rmtree(kept.path.parent / "its own")
        (kept.path / LEASE).unlink()
        with pytest.raises(FolderGone, match=r"Its last iteration could not be saved: File exists\."):
            kept.confirm()
        kept.leave_word(Outcome("failed", "it was gone"))
        assert read_outcome(kept.path) is None
        assert numbers(kept.path) == []


def test_what_the_disk_says_is_a_sentence(tmp_path: Path) -> None:
    full, odd = OSError(28, "No space left on device"), OSError("odd")
    for error, why in (
        (full, "No space left on device; free some space"),
        (odd, "odd; look at the file system that it is on"),
    ):
        sentence = f"^{tmp_path} cannot be written: {why}\\.$"
        with pytest.raises(CheckpointError, match=sentence), write_errors_named(tmp_path):
            raise error
