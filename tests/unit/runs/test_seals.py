"""Checkpoints with files of somebody else's format: under the manifest, and opened only if they are one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.data.state import State
from shoal.errors import CheckpointError, NotTrusted
from shoal.runs import seals
from shoal.runs.checkpoints import read_checkpoint, write_checkpoint
from shoal.runs.seals import check_seal, seal_of, trust_pickles

FILES = {"rllib/a.pkl": b"one", "rllib/learner/b.pkl": b"two"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(seals, "_trusted", set())
    return tmp_path


def written(folder: Path, seal: str | None = None) -> Path:
    state = State({"rllib": {"seal": seal_of(FILES) if seal is None else seal}}, {}, dict(FILES))
    return write_checkpoint(folder, state, {}, {"training_iteration": 1})


def test_files_are_written_and_read_under_the_manifest(home: Path) -> None:
    path = written(home)
    assert (path / "rllib" / "learner" / "b.pkl").read_bytes() == b"two"
    read = read_checkpoint(path)
    assert read.state.files == FILES
    check_seal(read.state, path)


@pytest.mark.parametrize("damage", ["change", "remove", "add", "link"])
def test_damage_is_refused(home: Path, damage: str) -> None:
    path = written(home)
    victim = path / "rllib" / "learner" / "b.pkl"
    if damage == "change":
        victim.write_bytes(b"six")
    elif damage == "add":
        (path / "rllib" / "c.pkl").write_bytes(b"")
    else:
        victim.unlink()
        if damage == "link":
            victim.symlink_to(path / "rllib" / "a.pkl")
    with pytest.raises(CheckpointError, match=r"is refused: (rllib/(learner/b|c)|b)\.pkl"):
        read_checkpoint(path)


def test_what_another_account_has_written_is_refused_until_it_is_trusted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(home)
    state = read_checkpoint(path).state
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))
    with pytest.raises(NotTrusted, match=r"pickled data of RLlib.*--trust"):
        check_seal(state, path)
    with pytest.raises(NotTrusted):
        check_seal(state, path, trust=False)
    check_seal(state, path, trust=True)
    trust_pickles()
    check_seal(state, path)


@pytest.mark.parametrize("seal", ["", "00", "no hexadecimal", "ab" * 32])
def test_no_seal_and_a_false_one_are_the_same(home: Path, seal: str) -> None:
    with pytest.raises(NotTrusted, match="did not write it"):
        check_seal(read_checkpoint(written(home, seal)).state, "it")


def test_a_checkpoint_without_foreign_files_needs_no_key(home: Path) -> None:
    check_seal(State(), "it")
    assert not (home / "state").exists()
