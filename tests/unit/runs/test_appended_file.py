"""A file that grows by whole pieces, whatever the disk does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shoal.runs import appended_file
from shoal.runs.appended_file import AppendedFile


def test_pieces_follow_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old ")
    file = AppendedFile(path)
    file.append(b"one ")
    file.append(b"two")
    file.close()
    assert path.read_bytes() == b"old one two"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.pwrite
    monkeypatch.setattr(appended_file.os, "pwrite", lambda fd, data, at: really(fd, data[:3], at))
    file = AppendedFile(tmp_path / "file")
    file.append(b"0123456789")
    file.append(b"abcdefgh")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"0123456789abcdefgh"


def test_what_does_not_fit_is_taken_back_and_written_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AppendedFile(tmp_path / "file")
    file.append(b"first ")
    really = os.pwrite
    calls: list[int] = []

    def full(descriptor: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(descriptor, data[:3], at)

    monkeypatch.setattr(appended_file.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.append(b"second ")
    assert (tmp_path / "file").read_bytes() == b"first "
    monkeypatch.undo()
    file.append(b"third")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"first second third"


def test_sync_and_close_reach_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(appended_file.os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    before = set(os.listdir("/proc/self/fd"))
    file = AppendedFile(tmp_path / "file")
    file.sync()
    file.close()
    assert synced == [str(tmp_path / "file")]
    assert set(os.listdir("/proc/self/fd")) == before
