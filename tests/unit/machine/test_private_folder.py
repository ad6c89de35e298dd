"""The private folder: for this user alone, short, and swept only when it is ours and nobody holds it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shoal.errors import ClusterError
from shoal.machine import private_folder
from shoal.machine.private_folder import MARK, MOST_BYTES, PrivateFolder, file_system, sweep, sweep_all


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_short_and_private(tmp_path: Path) -> None:
    folder = PrivateFolder({"TMPDIR": str(tmp_path / ("x" * 60))})
    assert folder.path.parent == Path("/tmp")
    assert len(str(folder.ray)) <= MOST_BYTES
    assert folder.ray.parent == folder.path, "whom Ray lets into its own folder is kept out of ours"
    assert mode(folder.path) == 0o700
    assert mode(folder.write("token", "t")) == 0o600
    folder.remove()
    assert not folder.path.exists()


def test_only_what_is_ours_and_nobody_holds_is_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private_folder, "_place", lambda *_: str(tmp_path))
    alive, dead = PrivateFolder({}), PrivateFolder({})
    os.close(dead.lock)
    kept = [tmp_path / name for name in ("shl-empty", "shl-with-a-lock", "shl-of-pip", "shoal-2024-results")]
    for folder in kept:
        folder.mkdir()
    (tmp_path / "shl-with-a-lock" / "lock").touch()
    (tmp_path / "shl-of-pip" / "lock").write_bytes(MARK + b"[[package]]")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "lock").write_bytes(MARK)
    (tmp_path / "shl-link").symlink_to(tmp_path / "thesis")
    sweep(tmp_path)
    assert alive.path.exists()
    assert not dead.path.exists()
    assert all(folder.exists() for folder in [*kept, tmp_path / "thesis", tmp_path / "shl-link"])
    alive.remove()


def test_a_shared_place_is_the_last_resort_and_never_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private_folder, "file_system", lambda _: "nfs4")
    monkeypatch.setattr(private_folder, "MOST_BYTES", 500)
    monkeypatch.setattr(private_folder, "sweep", lambda _: pytest.fail("a lock may be known to one host alone"))
    with pytest.raises(ClusterError, match=r"is shared between hosts \(nfs4\).* set RAY_TMPDIR"):
        PrivateFolder({"TMPDIR": str(tmp_path)})
    folder = PrivateFolder({"TMPDIR": str(tmp_path)}, may_be_shared=True)
    assert folder.path.parent == tmp_path
    folder.remove()


def test_what_was_left_is_swept_wherever_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("RAY_TMPDIR", "TMPDIR")}
    for place in places.values():
        place.mkdir()
    environ = {name: str(place) for name, place in places.items()}
    left = [PrivateFolder(environ, place=str(place)) for place in places.values()]
    for folder in left:
        os.close(folder.lock)
    monkeypatch.setattr(private_folder, "file_system", lambda path: "nfs4" if path == places["TMPDIR"] else "ext4")
    sweep_all(environ)
    assert [folder.path.exists() for folder in left] == [False, True], "a lock may be known to another host alone"


def test_the_file_system_of_a_path() -> None:
    assert file_system(Path("/proc/self")) == "proc"
