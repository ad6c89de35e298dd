"""Rows in files that checkpoints share: which file has which rows, to the byte, and what is shared of them."""

from __future__ import annotations

import errno
import os
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_rows import PLACES, SEGMENT_BYTES, assert_read, new_rows, numbered, saved
from safetensors.numpy import save

from shoal.data.state import Ring, State
from shoal.errors import CheckpointError, RowsLost
from shoal.runs import row_segments
from shoal.runs.bounded_files import proof_of
from shoal.runs.row_segments import (
    NewRows,
    SavedRows,
    copied_bytes,
    have_frames,
    moved_to,
    read_rings,
    row_files,
    snapshot,
)


@pytest.fixture(autouse=True)
def eight_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of eight rows, if a row has sixteen bytes."""
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", SEGMENT_BYTES)


def cut(state: State, name: str = "r", saved: dict[str, SavedRows] | None = None) -> list[tuple[int, int, bool]]:
    """Begin and end of each piece, and whether it is new."""
    pieces = snapshot(state, saved, copies=False).rings[name].pieces
    return [(piece.begin, piece.end, isinstance(piece, NewRows)) for piece in pieces]


def test_a_file_has_the_rows_of_its_name_and_no_others(tmp_path: Path) -> None:
    state = numbered(93, 118)
    manifest, _ = saved(tmp_path / "c", state)
    names = [f"replay/0-{a:012d}-{b:012d}.safetensors" for a, b in ((93, 96), (96, 104), (104, 112), (112, 118))]
    ranges = ((93, 96), (96, 104), (104, 112), (112, 118))
    segments = [[a, b, name] for (a, b), name in zip(ranges, names, strict=True)]
    assert manifest["rings"] == {"r": {"begin": 93, "end": 118, "rows": PLACES, "segments": segments}}
    assert sorted(f"replay/{file.name}" for file in (tmp_path / "c" / "replay").iterdir()) == sorted(names)
    for (begin, end), name in zip(ranges, names, strict=True):
        content = (tmp_path / "c" / name).read_bytes()
        assert manifest["files"][name] == proof_of(content)
        numbers = np.arange(begin, end)
        x, y = numbers.astype(np.float64)[:, None], np.stack([numbers, -numbers], axis=1).astype(np.int32)
        assert content == save({"x": x, "y": y})
    assert_read(tmp_path / "c", manifest, state)
    assert row_files(manifest["rings"]) == names
    assert not have_frames(manifest["rings"])


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 1), (0, 8), (0, 9), (7, 57), (48, 51), (50, 100), (99, 149), (100, 101), (1000, 1050)]
)
def test_rows_come_back_as_they_were(tmp_path: Path, begin: int, end: int) -> None:
    state = numbered(begin, end)
    manifest, found = saved(tmp_path / "one", state)
    assert_read(tmp_path / "one", manifest, state)
    assert [new for _, _, new in cut(state, saved=found)] == [False] * len(cut(state))
    more = numbered(begin + 3, end + 3) if end - begin == PLACES else numbered(begin, end + 3)
    again, _ = saved(tmp_path / "two", more, found)
    assert_read(tmp_path / "two", again, more)


def test_each_segment_is_fsynced_before_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.runs.checkpoints import write_checkpoint

    done: list[str] = []
    sync, rename = os.fsync, os.rename

    def noted_sync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def noted_rename(one: Path, other: Path) -> None:
        done.append(f"to {Path(other).name}")
        rename(one, other)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "rename", noted_rename)
    write_checkpoint(tmp_path, numbered(0, 12), {}, {"training_iteration": 1})
    first, second = (f"0-{a:012d}-{b:012d}.safetensors" for a, b in ((0, 8), (8, 12)))
    assert done.index(first) < done.index(second) < done.index("replay") < done.index("to checkpoint_000001")
    assert done.index("manifest.json") < done.index("to checkpoint_000001") < done.index(tmp_path.name)


@pytest.mark.parametrize(
    ("row", "limit", "places", "size"),
    [
        (np.zeros(1, np.uint8), 16, 100, 16),
        (np.zeros(3, np.uint8), 16, 100, 4),
        (np.zeros(3, np.uint8), 25, 100, 8),
        (np.zeros(16, np.uint8), 16, 100, 1),
        (np.zeros(17, np.uint8), 16, 100, 1),
        (np.zeros(0, np.uint8), 16, 100, 16),
        (np.zeros(5 << 18, np.uint8), None, 100, 2),  # of 4 MiB
        (np.zeros(1 << 20, np.uint8), None, 100, 4),
        (np.zeros(9 << 20, np.uint8), None, 4095, 2),  # but not more than 2048 of them
        (np.zeros(9 << 20, np.uint8), None, 4096, 4),
    ],
    ids=lambda value: str(value.nbytes if isinstance(value, np.ndarray) else value),
)
def test_how_many_rows_a_segment_has(
    row: np.ndarray, limit: int | None, places: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    if limit is not None:
        monkeypatch.setattr(row_segments, "SEGMENT_BYTES", limit)
    rows = np.broadcast_to(row, (40, len(row)))  # which takes no memory
    state = State({}, {"r.x.0": rows}, rings={"r": Ring("a", 0, 40, places, ("x",))})
    assert cut(state) == [(at, min(at + size, 40), True) for at in range(0, 40, size)]


def test_a_ring_without_rows_is_no_ring() -> None:
    state = State({"v": 1}, {"r.x.0": np.zeros((0, 1)), "other": np.ones(2)}, rings={"r": Ring("a", 5, 5, 9, ("x",))})
    taken = snapshot(state)
    assert taken.rings == {}
    assert taken.arrays.keys() == {"r.x.0", "other"}
    assert taken.values == {"v": 1}


def test_only_rows_are_left_out_of_the_other_arrays() -> None:
    state = numbered(40, 60).joined(State({}, {"r.x.2": np.ones(1), "r.z.0": np.ones(1), "x.0": np.ones(1)}))
    taken = snapshot(state)
    assert taken.arrays.keys() == {"r.x.2", "r.z.0", "x.0"}
    assert taken.values == {"end": 60}


def test_what_is_known_of_one_ring_is_nothing_of_another(tmp_path: Path) -> None:
    _, found = saved(tmp_path / "c", numbered(0, 16))
    assert all(new for _, _, new in cut(numbered(0, 16, name="s"), "s", found))
    assert not any(new for _, _, new in cut(numbered(0, 16), "r", found))


def test_a_copy_is_made_of_what_others_may_write_and_of_nothing_else() -> None:
    own, circle = np.arange(4.0), np.arange(20.0).reshape(10, 2)
    ring = Ring("a", 3, 13, 10, ("x",))
    arrays = {"r.x.0": circle[3:], "r.x.1": circle[:3], "own": own, "view": own[1:]}
    state = State({}, arrays, rings={"r": ring})
    copied, seen = snapshot(state), snapshot(state, copies=False)
    assert copied.arrays["own"] is own
    assert not np.shares_memory(copied.arrays["view"], own)
    assert seen.arrays["view"] is arrays["view"]
    for piece in copied.rings["r"].pieces:
        assert isinstance(piece, NewRows)
        assert not np.shares_memory(piece.columns["x"], circle)
    places = [(piece.begin, piece.end, np.shares_memory(piece.columns["x"], circle)) for piece in new_rows(seen)]
    assert places == [(3, 8, True), (8, 13, False)], "rows of both ends of the circle are put together"
    assert copied_bytes(state, {}) == circle.nbytes + own[1:].nbytes
    circle[:] = -1
    own[:] = -1
    assert copied.arrays["view"].tolist() == [1, 2, 3]
    assert [row for piece in new_rows(copied) for row in piece.columns["x"][:, 0].tolist()] == [
        *range(6, 20, 2),
        0,
        2,
        4,
    ]


@pytest.mark.parametrize("end", [48, 49, 50, 51, 52, 53, 56, 57])
def test_rows_of_one_end_of_the_circle_are_not_copied(end: int) -> None:
    state = numbered(40, end)
    for piece in new_rows(snapshot(state, copies=False)):
        is_one = any(np.shares_memory(piece.columns["x"], state.arrays[name]) for name in ("r.x.0", "r.x.1")
                     if name in state.arrays)  # fmt: skip
        assert is_one == (not piece.begin < PLACES < piece.end)
        assert piece.columns["x"][:, 0].tolist() == [*range(piece.begin, piece.end)]


def test_at_the_seam_of_the_circle_nothing_is_copied() -> None:
    """Where a segment ends with the circle."""
    state = numbered(40, 60, places=48)
    pieces = new_rows(snapshot(state, copies=False))
    assert [(piece.begin, piece.end) for piece in pieces] == [(40, 48), (48, 56), (56, 60)]
    for piece, name in zip(pieces, ("r.x.0", "r.x.1", "r.x.1"), strict=True):
        assert np.shares_memory(piece.columns["x"], state.arrays[name])


def test_the_bytes_of_a_copy_are_those_that_no_file_has(tmp_path: Path) -> None:
    _, found = saved(tmp_path / "c", numbered(0, 20))
    assert copied_bytes(numbered(0, 20), {}) == 20 * 16
    assert copied_bytes(numbered(0, 20), found) == 0
    assert copied_bytes(numbered(0, 21), found) == 5 * 16, "the last segment was not full"


def test_which_segments_are_shared(tmp_path: Path) -> None:
    _, found = saved(tmp_path / "c", numbered(0, 17))
    assert cut(numbered(0, 17), saved=found) == [(0, 8, False), (8, 16, False), (16, 17, False)]
    assert cut(numbered(0, 18), saved=found) == [(0, 8, False), (8, 16, False), (16, 18, True)]
    assert cut(numbered(5, 24), saved=found) == [(0, 8, False), (8, 16, False), (16, 24, True)]
    assert cut(numbered(8, 24), saved=found) == [(8, 16, False), (16, 24, True)]
    _, later = saved(tmp_path / "d", numbered(5, 20))
    assert cut(numbered(3, 20), saved=later) == [(3, 8, True), (8, 16, False), (16, 20, False)], (
        "rows 3 and 4 are not there"
    )


def test_a_ring_that_goes_on_from_another_shares_what_both_have(tmp_path: Path) -> None:
    _, found = saved(tmp_path / "c", numbered(0, 20))
    (own,) = found.values()
    ends = [(segment.begin, segment.end) for segment in own.segments]
    assert ends == [(0, 8), (8, 16), (16, 20)]
    for follows, numbering, shared in (
        (None, "a", 3), (None, "b", 0), (("a", 20), "b", 3), (("a", 19), "b", 2), (("a", 16), "b", 2),
        (("a", 15), "b", 1), (("a", 0), "b", 0), (("c", 20), "b", 0), (("c", 20), "a", 3),
    ):  # fmt: skip
        (ring,) = numbered(0, 20, follows=follows, numbering=numbering).rings.values()
        assert own.shared_with(ring) == own.segments[:shared]


def test_a_snapshot_takes_over_what_was_shared_meanwhile(tmp_path: Path) -> None:
    _, first = saved(tmp_path / "one", numbered(0, 16))
    taken = snapshot(numbered(0, 24), first)
    _, newer = saved(tmp_path / "two", numbered(0, 20), first)
    files = [piece.file.parent.parent.name for piece in moved_to(taken, newer).rings["r"].pieces[:2]]
    assert files == ["two", "two"]
    assert isinstance(moved_to(taken, newer).rings["r"].pieces[2], NewRows)
    for other in ({}, {"r": replace(newer["r"], numbering="b")}, {"s": newer["r"]}):
        assert moved_to(taken, other).rings["r"].pieces == taken.rings["r"].pieces
    assert moved_to(taken, newer).values is taken.values


def test_what_a_snapshot_says_cannot_be_changed(tmp_path: Path) -> None:
    """Another thread writes it."""
    taken = snapshot(numbered(0, 9))
    _, found = saved(tmp_path / "c", numbered(0, 9))
    ring = taken.rings["r"]
    for each in (taken, ring, ring.pieces[0], found["r"], found["r"].segments[0]):
        for name in vars(each):
            with pytest.raises(FrozenInstanceError):
                setattr(each, name, None)


def test_a_link_where_there_are_links_and_a_copy_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = numbered(0, 16)
    manifest, found = saved(tmp_path / "one", state)
    linked, _ = saved(tmp_path / "two", state, found)
    link = os.link

    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(os, "link", no_link)
    copied, _ = saved(tmp_path / "three", state, found)
    monkeypatch.setattr(os, "link", link)
    assert manifest == linked == copied
    for name in row_files(manifest["rings"]):
        one, two, three = (tmp_path / folder / name for folder in ("one", "two", "three"))
        assert one.samefile(two)
        assert not one.samefile(three)
        assert one.read_bytes() == three.read_bytes()
    for folder in ("one", "two", "three"):
        assert_read(tmp_path / folder, manifest, state)


@pytest.mark.parametrize("how", ["longer", "shorter", "flipped", "missing", "link", "folder"])
@pytest.mark.parametrize("has_links", [True, False])
def test_what_was_to_be_shared_and_is_not_itself_is_lost(
    tmp_path: Path, how: str, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = saved(tmp_path / "one", numbered(0, 16))
    file = found["r"].segments[1].file
    content = file.read_bytes()
    file.unlink()
    if how == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif how == "folder":
        file.mkdir()
    elif how != "missing":
        changed = {"longer": content + b" ", "shorter": content[:-1], "flipped": content[:-1] + b"\x7f"}
        file.write_bytes(changed[how])
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_, **__: os.stat(tmp_path / "nowhere"))
    elif how == "flipped":
        return  # a link costs no read: it is found when the checkpoint is read
    with pytest.raises(RowsLost, match=f"{file} is gone or damaged"):
        saved(tmp_path / "two", numbered(0, 24), found)


def test_a_segment_that_is_too_large_is_read_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, found = saved(tmp_path / "one", numbered(0, 8))
    (segment,) = found["r"].segments
    (name,) = row_files(manifest["rings"])
    with open(segment.file, "r+b") as file:
        file.truncate((1 << 40) + 1)
    manifest["files"][name]["bytes"] = (1 << 40) + 1
    monkeypatch.setattr(row_segments, "available_memory", lambda: 1 << 50)
    with pytest.raises(CheckpointError, match="has more than 1099511627776 bytes"):
        read_rings(tmp_path / "one", manifest)
    monkeypatch.setattr(os, "link", lambda *_, **__: os.stat(tmp_path / "nowhere"))
    with pytest.raises(RowsLost) as caught:
        saved(tmp_path / "two", numbered(0, 8), found)
    assert "has more than 1099511627776 bytes" in str(caught.value.__cause__)
