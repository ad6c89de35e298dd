"""Checkpoints in detail: what a manifest may say, what is looked at without reading all, and what is cleaned up."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.state import State
from shoal.errors import CheckpointError, EnvError
from shoal.runs import bounded_files, checkpoints
from shoal.runs.checkpoint_folders import MANIFEST, checkpoints_of
from shoal.runs.checkpoints import (
    best_checkpoint,
    checkpoint_hash,
    checkpoint_size,
    newest_summary,
    prune,
    read_checkpoint,
    rows_of,
    tidy,
    understood,
    write_checkpoint,
)
from shoal.runs.row_segments import RowsLost, snapshot
from shoal.version import __version__


def write(folder: Path, iteration: int, state: State | None = None, **summary: float) -> Path:
    return write_checkpoint(folder, state or State({}), {"run": "PPO"}, {"training_iteration": iteration, **summary})


def sealed(manifest: dict[str, Any]) -> bytes:
    """As a forger would write it who knows how."""
    proof = hashlib.sha256(json.dumps(manifest, ensure_ascii=False).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": proof}, indent=1).encode() + b"\n"


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256"]
    change(manifest)
    (path / MANIFEST).write_bytes(sealed(manifest))


def put(path: Path, name: str, content: bytes) -> None:
    """Put a file into a checkpoint, and its size and hash into the manifest."""
    (path / name).write_bytes(content)
    proof = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(path, lambda manifest: manifest["files"].update({name: proof}))


def test_what_is_written_is_the_same_in_every_version(tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "run", 7, State({"name": "Zoë"}), mean=1.5)
    assert (path / "state.json").read_bytes() == '{"name": "Zoë"}'.encode()
    manifest = json.loads((path / MANIFEST).read_text())
    files = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name in ("state.json", "arrays.safetensors", "experiment.json")
        for content in [(path / name).read_bytes()]
    }
    summary = {"training_iteration": 7, "mean": 1.5}
    told = {"format": 1, "shoal": __version__, "files": files, "summary": summary}
    assert (path / MANIFEST).read_bytes() == sealed(told)
    assert manifest["sha256"] == json.loads(sealed(told))["sha256"]
    assert [child.name for child in path.parent.iterdir()] == ["checkpoint_000007"]


def test_writing_makes_no_copy_of_the_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    really = checkpoints.snapshot
    monkeypatch.setattr(
        checkpoints, "snapshot", lambda *given, copies: asked.append(copies) or really(*given, copies=copies)
    )
    state = State({}, {"x": np.ones(2)})
    write(tmp_path, 1, state)
    checkpoints.write_sharing(tmp_path, state, {}, {}, {"training_iteration": 2})
    assert asked == [False, False]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda told: told.update(format=4),
            f"format 4, this shoal {re.escape(__version__)} reads up to 3: install",
        ),
        (lambda told: told.update(format=0), "manifest.json is damaged"),
        (lambda told: told.update(format="1"), "manifest.json is damaged"),
        (lambda told: told.update(format=2), "damaged .format 2 has other parts"),
        (lambda told: told.update(rings={}), "damaged .format 1 has other parts"),
        (lambda told: told.pop("files"), "manifest.json is damaged"),
        (lambda told: told.update(files=[]), "files and summary must be mappings"),
        (lambda told: told.update(summary=[]), "files and summary must be mappings"),
        (lambda told: told["files"].pop("state.json"), "it does not tell the size of state.json"),
        (lambda told: told["files"]["state.json"].update(bytes=True), "it does not tell the size of state.json"),
        (lambda told: told["files"].update(more=5), "it does not tell the size of more"),
        (lambda told: told["files"]["state.json"].update(bytes=3), "its size differs"),
        (lambda told: told["files"]["state.json"].update(sha256="0" * 64), "state.json is not what was saved .SHA-256"),
        (lambda told: told["summary"].update(mean="1"), "summary.mean must be a number"),
        (lambda told: told["summary"].update(mean=None), "summary.mean must be a number"),
        (lambda told: told["summary"].update(training_iteration=1.5), "summary has no training_iteration"),
        (lambda told: told["summary"].pop("training_iteration"), "summary has no training_iteration"),
    ],
)
def test_a_sealed_manifest_that_is_none_of_ours_is_a_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    path = write(tmp_path, 3)
    forge(path, lambda told: told.update(shoal="0.0"))
    assert read_checkpoint(path).summary == {"training_iteration": 3}  # a forger can do that much
    forge(path, change)
    with pytest.raises(CheckpointError, match=f"{path}.*{sentence}"):
        read_checkpoint(path)


def test_a_manifest_has_one_way_to_be_written(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    told = json.loads((path / MANIFEST).read_text())
    for content in (json.dumps(told), json.dumps(told, indent=1) + "\n\n", json.dumps([told]), "5", "{}", "x" * 10):
        (path / MANIFEST).write_text(content)
        with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
            read_checkpoint(path)
    (path / MANIFEST).write_bytes(b" " * (1 << 22))
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
        read_checkpoint(path)
    (path / MANIFEST).write_bytes(b" " * ((1 << 22) + 1))
    with pytest.raises(CheckpointError, match=r"manifest.json has more than 4194304 bytes"):
        read_checkpoint(path)


def test_files_that_others_leave_behind_are_passed_over_and_no_others(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    for name in (".nfs0001", ".DS_Store"):
        (path / name).write_text("x")
    assert read_checkpoint(path).path == path
    (path / "rllib").mkdir()
    (path / "rllib" / ".nfs0002").write_text("x")
    assert read_checkpoint(path).path == path
    (path / "rllib" / "more").write_text("x")
    with pytest.raises(CheckpointError, match=r"refused: rllib/more does not belong there"):
        read_checkpoint(path)
    shutil.rmtree(path / "rllib")
    (path / "rllib").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match=r"refused: rllib does not belong there"):
        read_checkpoint(path)
    (path / "rllib").unlink()
    (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"refused: state.json is missing"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("rllib/x", True), ("rllib/a/b", True), ("rllib", False), ("rllib/", False), ("rllib/../x", False), (5, False),
     ("rllib/./x", False), ("rllib//x", False), ("other/x", False), ("state.json", False), ("", False)],
)  # fmt: skip
def test_what_is_a_file_of_somebody_elses_checkpoint(name: Any, is_one: bool) -> None:
    assert checkpoints._is_foreign(name) is is_one


def test_files_of_somebody_else_come_back(tmp_path: Path) -> None:
    path = write(tmp_path, 3, State({}, {}, {"rllib/a": b"1", "rllib/b/c": b"2"}))
    assert read_checkpoint(path).state.files == {"rllib/a": b"1", "rllib/b/c": b"2"}
    assert read_checkpoint(write(tmp_path, 4)).state.files == {}


@pytest.mark.parametrize(
    ("name", "values", "is_refused"),
    [
        ("policy/params", [np.nan], True),
        ("learner/optimizer", [1.0, np.inf], True),
        ("learner/replay.rewards", [np.nan], False),
        ("other/x", [np.nan], False),
        ("policy/params", [1.0], False),
        ("policy/counts", [1], False),
    ],
)
def test_what_was_learned_must_be_finite(tmp_path: Path, name: str, values: list[float], is_refused: bool) -> None:
    path = write(tmp_path, 3, State({}, {name: np.array(values)}))
    if is_refused:
        with pytest.raises(CheckpointError, match=f"{name} holds numbers that are not finite"):
            read_checkpoint(path)
    else:
        assert np.array_equal(read_checkpoint(path).state.arrays[name], np.array(values), equal_nan=True)


@pytest.mark.parametrize("name", ["state.json", "experiment.json"])
def test_values_that_are_no_mapping_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 3)
    put(path, name, b"[]")
    with pytest.raises(CheckpointError, match=r"state.json and experiment.json must hold mappings"):
        read_checkpoint(path)


@pytest.mark.parametrize("error", [KeyError("x"), IndexError(), TypeError("y"), ValueError(), OverflowError(),
                                   AttributeError(), AssertionError()])  # fmt: skip
def test_what_contents_do_to_who_takes_them_over_is_a_sentence(error: Exception) -> None:
    sentence = f"run/c is refused: .* not what shoal saves: {type(error).__name__}: "
    with pytest.raises(CheckpointError, match=sentence), understood(Path("run/c")):
        raise error


def test_some_things_are_told_otherwise(tmp_path: Path) -> None:
    for error in (RecursionError(), MemoryError()):
        with pytest.raises(CheckpointError, match=r"it is too deep or too large"), understood(tmp_path):
            raise error
    with pytest.raises(EnvError, match="mine"), understood(tmp_path):
        raise EnvError("mine")
    with pytest.raises(OSError, match="mine"), understood(tmp_path):
        raise OSError("mine")


def test_the_summary_the_hash_and_the_size_need_no_whole_read(tmp_path: Path) -> None:
    assert newest_summary(tmp_path) is None
    first, second = write(tmp_path, 1, mean=2.0), write(tmp_path, 2)
    assert newest_summary(tmp_path) == {"training_iteration": 2}
    (second / "state.json").write_text("damaged")
    assert newest_summary(tmp_path) == {"training_iteration": 2}
    assert checkpoint_hash(first) == hashlib.sha256((first / MANIFEST).read_bytes()).hexdigest()
    assert checkpoint_size(first) == sum(len(file.read_bytes()) for file in first.iterdir())
    (first / "more").mkdir()
    (first / "more" / "x").write_bytes(b"12345")
    (first / "link").symlink_to(first / "state.json")
    assert (
        checkpoint_size(first) == sum(len((first / name).read_bytes()) for name in os.listdir(first) if "." in name) + 5
    )
    (second / MANIFEST).write_text("damaged")
    assert newest_summary(tmp_path) == {"training_iteration": 1, "mean": 2.0}
    assert checkpoint_hash(second) is None


def test_the_best_is_the_newest_of_equals(tmp_path: Path) -> None:
    assert best_checkpoint(tmp_path, "mean") is None
    for iteration, mean in ((1, 5.0), (2, 1.0), (3, 5.0), (4, 1.0)):
        write(tmp_path, iteration, mean=mean)
    write(tmp_path, 5)
    damaged = write(tmp_path, 6, mean=9.0)
    (damaged / MANIFEST).write_text("{}")
    assert best_checkpoint(tmp_path, "mean") == tmp_path / "checkpoint_000003"
    assert best_checkpoint(tmp_path, "min-mean") == tmp_path / "checkpoint_000004"
    assert best_checkpoint(tmp_path, "other") is None


def test_pruning_spares_the_best_and_those_that_are_spared(tmp_path: Path) -> None:
    for iteration in range(1, 7):
        write(tmp_path, iteration, mean=-float(iteration))
    prune(tmp_path, 2, "mean", [tmp_path / "checkpoint_000003"])
    kept = [path.name for path in checkpoints_of(tmp_path)]
    assert kept == [f"checkpoint_00000{number}" for number in (6, 5, 3, 1)]
    prune(tmp_path, 1)
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint_000006"]


def test_what_cannot_be_pruned_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Path) -> None:
        raise OSError(5, "Input/output error")

    write(tmp_path, 1)
    write(tmp_path, 2)
    monkeypatch.setattr(checkpoints, "remove_folder", fail)
    prune(tmp_path, 1)
    assert f"old checkpoints of {tmp_path} could not be removed: Input/output error" in caplog.text
    assert len(checkpoints_of(tmp_path)) == 2


def test_what_a_dead_writer_left_is_cleaned_up(tmp_path: Path) -> None:
    one, two = write(tmp_path, 1), write(tmp_path, 2)
    one.rename(tmp_path / ".old-checkpoint_000001")  # it died between two renames
    shutil.copytree(two, tmp_path / ".old-checkpoint_000002")  # and here after the second
    shutil.copytree(two, tmp_path / ".tmp-checkpoint_000003-5-ab")
    (tmp_path / ".tmp-result.json-5-ab").write_text("x")
    for name in ("result.json", ".lease"):
        (tmp_path / name).write_text("x")
    assert newest_summary(tmp_path) == {"training_iteration": 2}
    assert checkpoint_hash(one) == checkpoint_hash(tmp_path / ".old-checkpoint_000001") is not None
    assert checkpoint_size(one) > 0
    assert read_checkpoint(one).summary == {"training_iteration": 1}
    tidy(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".lease", "checkpoint_000001", "checkpoint_000002", "result.json"]
    assert read_checkpoint(one).summary == {"training_iteration": 1}


def test_a_rename_that_fails_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 1, State({"turn": 1}))
    really, failing = os.rename, [True]

    def rename(one: Path, other: Path) -> None:
        if Path(one).name.startswith(".tmp-") and failing.pop():
            raise OSError(28, "No space left on device")
        really(one, other)

    monkeypatch.setattr(checkpoints.os, "rename", rename)
    with pytest.raises(CheckpointError, match=r"could not be written: No space left on device; earlier checkpoints"):
        write(tmp_path, 1, State({"turn": 2}))
    assert os.listdir(tmp_path) == ["checkpoint_000001"]
    assert read_checkpoint(path).state.values == {"turn": 1}
    failing.append(False)
    write(tmp_path, 1, State({"turn": 3}))
    assert read_checkpoint(path).state.values == {"turn": 3}


def test_an_error_that_is_none_of_the_disks_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "sync_folder", fail)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_the_newest_good_one_is_looked_for_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for iteration in (1, 2, 3):
        write(tmp_path, iteration)
    for iteration in (2, 3):
        (tmp_path / f"checkpoint_00000{iteration}" / "state.json").write_text("damaged")
    assert read_checkpoint(tmp_path).summary == {"training_iteration": 1}
    assert caplog.text.count("Trying the one before it.") == 2
    (tmp_path / "checkpoint_000001" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"contains no readable checkpoint; give the folder of a run"):
        read_checkpoint(tmp_path)


def test_a_run_that_goes_on_while_its_checkpoints_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was listed is removed by its run, which has written a newer one."""
    write(tmp_path, 1)
    really = checkpoints._read_folder

    def read(path: Path) -> checkpoints.Checkpoint:
        if path.name == "checkpoint_000001" and path.exists():
            write(tmp_path, 2)
            shutil.rmtree(path)
        return really(path)

    monkeypatch.setattr(checkpoints, "_read_folder", read)
    assert read_checkpoint(tmp_path).summary == {"training_iteration": 2}


def test_what_cannot_be_saved_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"manifest.json cannot be saved"):
        write(tmp_path / "run", 1, mean=float("nan"))
    with pytest.raises(CheckpointError, match=r"experiment.json cannot be saved: .* .finite numbers, text"):
        write_checkpoint(tmp_path / "run", State({}), {"x": object()}, {"training_iteration": 1})
    assert not list(tmp_path.iterdir())


def test_more_values_than_may_be_read_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_files, "MOST_VALUES", 50)
    with pytest.raises(CheckpointError, match=r"state.json has more than 50 values"):
        write(tmp_path, 1, State({"x": list(range(60))}))
    assert not list(tmp_path.iterdir())


def test_what_has_no_rows_shares_none(tmp_path: Path) -> None:
    taken = snapshot(State({}), copies=False)
    path = write_checkpoint(tmp_path, taken, {}, {"training_iteration": 1})
    assert rows_of(path, taken) == {}
    assert read_checkpoint(path).saved_rows == {}


def test_rows_that_were_lost_are_written_again_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    really_take, really_write = checkpoints.snapshot, checkpoints.write_checkpoint

    def write_once_lost(*given: Any) -> Path:
        if len(asked) == 1:
            raise RowsLost
        return really_write(*given)

    monkeypatch.setattr(checkpoints, "write_checkpoint", write_once_lost)
    monkeypatch.setattr(
        checkpoints, "snapshot", lambda *given, copies: asked.append(copies) or really_take(*given, copies=copies)
    )
    path, _ = checkpoints.write_sharing(tmp_path, State({"x": 1}), {}, {}, {"training_iteration": 2})
    assert asked == [False, False]
    assert read_checkpoint(path).state.values == {"x": 1}


def test_every_folder_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(checkpoints, "sync_folder", lambda folder: synced.append(folder.name))
    write(tmp_path, 1, State({}, {}, {"rllib/a/b": b"1", "rllib/c": b"2"}))
    assert sorted(synced[:2]) == ["a", "rllib"]
    assert synced[2].startswith(".tmp-checkpoint_000001-")
    assert synced[3:] == [tmp_path.name]


def test_what_was_kept_aside_is_in_nobodys_way(tmp_path: Path) -> None:
    """Its writer died after the second rename, and nobody has cleaned up."""
    path = write(tmp_path, 1, State({"turn": 0}))
    path.rename(tmp_path / "before")
    write(tmp_path, 1, State({"turn": 1}))
    (tmp_path / "before").rename(tmp_path / ".old-checkpoint_000001")
    assert read_checkpoint(path).state.values == {"turn": 1}
    write(tmp_path, 1, State({"turn": 2}))
    assert os.listdir(tmp_path) == ["checkpoint_000001"]
    assert read_checkpoint(path).state.values == {"turn": 2}


def test_a_first_checkpoint_whose_rename_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.rename

    def rename(one: Path, other: Path) -> None:
        if Path(one).name.startswith(".tmp-"):
            raise OSError(28, "No space left on device")
        really(one, other)

    monkeypatch.setattr(checkpoints.os, "rename", rename)
    with pytest.raises(CheckpointError, match=r"could not be written: No space left on device"):
        write(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_what_was_refused_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the list of checkpoints is made anew, for a run that goes on."""
    (write(tmp_path, 1) / "state.json").unlink()
    read: list[str] = []
    really = checkpoints._read_folder

    def reading(path: Path) -> checkpoints.Checkpoint:
        assert len(read) < 10
        if not read:
            (write(tmp_path, 2) / "state.json").unlink()
        read.append(path.name)
        return really(path)

    monkeypatch.setattr(checkpoints, "_read_folder", reading)
    assert checkpoints.newest_good(tmp_path) is None
    assert read == ["checkpoint_000001", "checkpoint_000002"]


def test_what_is_gone_meanwhile_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / ".tmp-gone", self / ".tmp-checkpoint_gone"]))
    tidy(tmp_path)
