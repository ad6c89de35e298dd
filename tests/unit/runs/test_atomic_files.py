"""Files that are whole or absent: what is synced, in which order, and what is left where something fails."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import CheckpointError
from shoal.runs import atomic_files
from shoal.runs.atomic_files import (
    open_own,
    own_folder,
    remove_folder,
    remove_tree,
    replace_file,
    sync_folder,
    write_file,
)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What has been synced: its name, and how many bytes of it were written by then."""
    found: list[tuple[str, int]] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found.append((path.name, path.stat().st_size if path.is_file() else -1))
        really(descriptor)

    monkeypatch.setattr(atomic_files.os, "fsync", fsync)
    return found


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_new_file_is_on_the_disk_with_all_its_bytes(tmp_path: Path, synced: list[tuple[str, int]]) -> None:
    write_file(tmp_path / "new", b"12345")
    assert (tmp_path / "new").read_bytes() == b"12345"
    assert synced == [("new", 5)]
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "new", b"other")


def test_a_replaced_file_is_synced_before_and_its_name_after(tmp_path: Path, synced: list[tuple[str, int]]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    replace_file(path, b"the new one")
    assert path.read_bytes() == b"the new one"
    (temporary, size), folder = synced
    assert temporary.startswith(".tmp-file-")
    assert size == len(b"the new one")
    assert folder == (tmp_path.name, -1)
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_cannot_be_replaced_stays_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(atomic_files.os, call, failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_what_was_not_even_begun_leaves_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        replace_file(tmp_path / "absent" / "file", b"new")
    assert caught.value.__context__ is None


def test_a_folder_is_synced_and_closed(tmp_path: Path, synced: list[tuple[str, int]]) -> None:
    before = open_files()
    sync_folder(tmp_path)
    assert synced == [(tmp_path.name, -1)]
    assert open_files() == before
    with pytest.raises(NotADirectoryError):
        sync_folder(Path(__file__))


@pytest.mark.parametrize(("code", "is_told"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_told_where_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_told: bool
) -> None:
    before = open_files()
    monkeypatch.setattr(atomic_files.os, "fsync", failing(code))
    if is_told:
        with pytest.raises(OSError, match="Input/output error"):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)
    assert open_files() == before


def test_ones_own_file_is_made_or_opened_where_it_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        descriptor = open_own(tmp_path / "log", os.O_WRONLY)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o644
    assert not os.get_inheritable(descriptor)
    os.write(descriptor, b"one")
    os.close(descriptor)
    descriptor = open_own(tmp_path / "log", os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b" two")
    os.close(descriptor)
    assert (tmp_path / "log").read_bytes() == b"one two"


def test_a_link_is_refused_and_other_errors_are_not_called_one(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(CheckpointError, match="symbolic link"):
        open_own(tmp_path / "link", os.O_WRONLY | os.O_TRUNC)
    assert (tmp_path / "target").read_bytes() == b"mine"
    with pytest.raises(IsADirectoryError):
        open_own(tmp_path, os.O_WRONLY)


def test_a_folder_goes_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "file").touch()
    doomed: list[Path] = []
    monkeypatch.setattr(atomic_files, "remove_tree", lambda place: (doomed.append(place), remove_tree(place)))
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []
    assert doomed[0].name.startswith(".tmp-checkpoint-")
    remove_folder(folder)  # nobody minds that it is gone already
    assert len(doomed) == 1


def test_of_a_link_to_a_folder_only_the_link_goes(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    assert [child.name for child in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()
    remove_tree(tmp_path / "never was")


def test_what_is_not_there_is_removed_without_a_word(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")
    remove_folder(tmp_path / "absent")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_ones_own_is_no_link(tmp_path: Path) -> None:
    assert own_folder(tmp_path / "videos") == tmp_path / "videos"
    (tmp_path / "videos").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="videos is a symbolic link"):
        own_folder(tmp_path / "videos")


def test_a_link_that_somebody_else_removes_first_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_symlink", lambda self: self.name == "gone")
    remove_tree(tmp_path / "gone")
