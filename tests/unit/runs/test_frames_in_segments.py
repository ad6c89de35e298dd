"""Rows that have ids of frames: each file has the frames of its own rows, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_rows import new_rows, saved
from safetensors.numpy import save

from shoal.data.frames import Frames, FrameStore
from shoal.data.state import Ring, State
from shoal.errors import CheckpointError
from shoal.runs import row_segments
from shoal.runs.bounded_files import proof_of
from shoal.runs.row_segments import (
    FramesRead,
    copied_bytes,
    have_frames,
    read_rings,
    snapshot,
)


def stacked(begin: int, end: int, places: int = 12, **more: Any) -> tuple[State, FrameStore]:
    """A ring whose rows have two frames each, number n the frames n and n+1, which are full of these numbers."""
    store = FrameStore((3, 5), np.dtype(np.int16))
    store.put(np.full((3, 3, 5), -7, np.int16))  # somebody else's, so that ids are no numbers from 0
    images = np.broadcast_to(np.arange(begin, end + 1, dtype=np.int16)[:, None, None], (end + 1 - begin, 3, 5))
    ids = store.put(images)
    frames = {"f": Frames(store, ("obs", "next"))}
    ring = Ring("a", begin, end, places, ("obs", "next", "y"), frames=frames, **more)
    arrays: dict[str, np.ndarray] = {}
    for k, (first, last) in enumerate(ring.stretches()):
        numbers = np.arange(first, last)
        arrays[f"r.obs.{k}"] = ids[numbers - begin][:, None]
        arrays[f"r.next.{k}"] = np.stack([ids[numbers - begin], ids[numbers - begin + 1]], axis=1)
        arrays[f"r.y.{k}"] = numbers.astype(np.float64)
    return State({}, arrays, rings={"r": ring}), store


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 9), (7, 19), (13, 24)])
def test_frames_come_back_with_the_rows_that_have_them(
    tmp_path: Path, begin: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 4 * (4 + 8 + 8 + 30))
    state, store = stacked(begin, end)
    manifest, _ = saved(tmp_path / "c", state)
    assert have_frames(manifest["rings"])
    assert not have_frames({"r": {}})
    assert manifest["rings"]["r"]["frames"] == {"f": ["obs", "next"]}
    assert [segment[:2] for segment in manifest["rings"]["r"]["segments"]] == [
        [max(at, begin), min(at + 4, end)] for at in range(begin - begin % 4, end, 4)
    ]
    for first, last, name in manifest["rings"]["r"]["segments"]:
        numbers = np.arange(first, last + 1)
        own = np.arange(last - first, dtype=np.int32)
        columns = {
            "f": np.repeat(numbers.astype(np.int16), 15).reshape(-1, 3, 5),
            "obs": own[:, None],
            "next": np.stack([own, own + 1], axis=1),
            "y": numbers[:-1].astype(np.float64),
        }
        content = (tmp_path / "c" / name).read_bytes()
        assert content == save(columns), "each has the frames of its own rows, in order"
        assert manifest["files"][name] == proof_of(content)
    arrays, rings = read_rings(tmp_path / "c", manifest)
    (frames,) = rings["r"].frames.values()
    assert (frames.columns, frames.store.shape, frames.store.dtype) == (("obs", "next"), (3, 5), np.int16)
    assert {*rings["r"].columns} == {"obs", "next", "y"}
    assert arrays.keys() == state.arrays.keys()
    for name, array in arrays.items():
        theirs = state.arrays[name]
        if name.startswith("r.y"):
            assert array.tolist() == theirs.tolist()
        else:
            assert array.dtype == np.int32
            assert array.shape == theirs.shape
            looks = [each.store.take(ids.reshape(-1)) for each, ids in ((frames, array), (Frames(store, ()), theirs))]
            assert looks[0].tolist() == looks[1].tolist()
    kept = frames.store
    assert len(kept) == end + 1 - begin, "each frame is there once"
    del frames, rings
    assert len(kept) == 0, "nobody has them any more"


def test_the_size_of_rows_with_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 4 * (4 + 8 + 8 + 30))
    state, _ = stacked(8, 14)
    seen, copied = snapshot(state, copies=False), snapshot(state)
    for first, second in zip(new_rows(seen), new_rows(copied), strict=True):
        rows = first.end - first.begin
        assert first.size == rows * (4 + 8 + 8) + (rows + 1) * 30
        assert first.frames, "they are taken when they are written"
        assert not second.frames, "they are taken at once, for training goes on"
        assert second.size == first.size
        assert sorted(second.columns) == ["f", "next", "obs", "y"]
    assert copied_bytes(state, {}) == 6 * 20 + (5 + 3) * 30


def ids_of(*rows: Sequence[int]) -> np.ndarray:
    return np.array(rows, np.int32)


IMAGES = np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3)


@pytest.mark.parametrize(
    ("images", "ids"),
    [
        (IMAGES, ids_of([0, 4])),
        (IMAGES, ids_of([0, -1])),
        (IMAGES, ids_of([-1, -1])),
        (IMAGES, ids_of([3, 9])),
        (IMAGES, ids_of([9, 9])),
        (IMAGES, ids_of([0, 1]).astype(np.int64)),
        (IMAGES, ids_of([0, 1])[0]),
        (IMAGES, ids_of([0, 1])[None]),
        (IMAGES, np.zeros((1, 0), np.int32)),
        (IMAGES[:0], ids_of([0, 0])),
        (IMAGES[:, :0], ids_of([0, 0])),
        (IMAGES[0, 0, 0], ids_of([0, 0])),
    ],
    ids=lambda value: f"{value.shape} {value.dtype} {value.reshape(-1)[:2].tolist()}",
)
def test_ids_of_frames_that_are_not_there_are_refused(images: np.ndarray, ids: np.ndarray) -> None:
    read = FramesRead({"f": ["x"]})
    found = read.taken_out({"f": np.asarray(images), "x": ids, "y": ids}, "its file")
    assert found.keys() == {"x", "y"}
    with pytest.raises(CheckpointError, match="its file has other rows than its manifest says"):
        read.put(found, "its file")


def test_segments_of_different_frames_are_refused() -> None:
    for other in (IMAGES[:, :1], IMAGES.astype(np.int8), IMAGES[:, 0], IMAGES[..., None]):
        read = FramesRead({"f": ["x"]})
        one = read.put(read.taken_out({"f": IMAGES, "x": ids_of([2, 2])}, "one"), "one")
        (frames,) = read.found().values()
        assert frames.store.take(one["x"].reshape(-1)).tolist() == [IMAGES[2].tolist()] * 2, "one frame is enough"
        rows = read.taken_out({"f": other, "x": ids_of([0, 1])}, "another")
        with pytest.raises(CheckpointError, match="another has other rows"):
            read.put(rows, "another")
    read = FramesRead({"f": ["x"]})
    with pytest.raises(CheckpointError, match="a file has other rows"):
        read.taken_out({"x": ids_of([0, 1])}, "a file")
    rows = read.taken_out({"f": IMAGES}, "a file")
    with pytest.raises(CheckpointError, match="a file has other rows"):
        read.put(rows, "a file")


def test_more_frames_than_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_segments, "SLICE_ROWS", 3)
    images = np.arange(11 * 6, dtype=np.uint8).reshape(11, 2, 3)
    ids = np.random.default_rng(3).permutation(11)[:10].astype(np.int32).reshape(5, 2)
    read = FramesRead({"f": ["x"]})
    rows = read.put(read.taken_out({"f": images, "x": ids}, "a file"), "a file")
    (frames,) = read.found().values()
    assert frames.store.take(rows["x"].reshape(-1)).tolist() == images[ids.reshape(-1)].tolist()
    assert len(frames.store) == 10
