"""Rows that somebody has forged, or that do not fit: one sentence, before any memory is taken."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_rows import SEGMENT_BYTES, assert_read, numbered, saved
from safetensors.numpy import load, save

from shoal.data.state import Ring, State
from shoal.errors import CheckpointError
from shoal.runs import row_segments
from shoal.runs.bounded_files import proof_of
from shoal.runs.row_segments import (
    Segment,
    check_rings,
    read_rings,
    row_files,
    saved_rows,
    write_rings,
)


@pytest.fixture(autouse=True)
def eight_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of eight rows, if a row has sixteen bytes."""
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", SEGMENT_BYTES)


def file_of(begin: int, end: int) -> str:
    return f"replay/0-{begin:012d}-{end:012d}.safetensors"


def ring_of(*ends: int, begin: int | None = None, end: int | None = None, rows: Any = 96) -> dict[str, Any]:
    """What a manifest says of a ring whose segments have these ends."""
    segments = [[first, last, file_of(first, last)] for first, last in pairwise(ends)]
    return {"begin": ends[0] if begin is None else begin, "end": ends[-1] if end is None else end, "rows": rows,
            "segments": segments}  # fmt: skip


GOOD = ring_of(96, 112, 128, 144)
NO_RING = "the numbers of r make no ring"
NO_SEGMENTS = "the segments of r are not those of a ring"
NO_END = "the segments of r end too early or too late"
NO_FRAMES = "the frames of r are not those of a ring"


@pytest.mark.parametrize(
    "ring",
    [
        GOOD,
        ring_of(0, 16),
        ring_of(0, 1, rows=1),
        ring_of(96, 144, 192),
        ring_of(96, 112, begin=100),
        ring_of(96, 112, begin=111),
        {**GOOD, "frames": {"f": ["x", "y"], "g": ["z"]}},
    ],
    ids=str,
)
def test_rings_that_we_write_are_taken(ring: dict[str, Any]) -> None:
    check_rings({"r": ring}, {file: {} for _, _, file in ring["segments"]})


@pytest.mark.parametrize(
    ("ring", "why"),
    [
        (ring_of(-1, 16), NO_RING),
        ({**ring_of(0, 16), "end": 0}, NO_RING),
        ({**ring_of(8, 16), "end": 8, "segments": []}, NO_RING),
        (ring_of(0, 16, 97), NO_RING),
        (ring_of(96, 112, 128, 144, rows=47), NO_RING),
        (ring_of(96, 112, rows=96.0), NO_RING),
        (ring_of(96, 112, rows=True), NO_RING),
        ({**ring_of(0, 1, rows=1), "begin": False}, NO_RING),
        ({**ring_of(0, 1, rows=1), "end": True}, NO_RING),
        (ring_of(96, 112, begin=112, end=113), NO_SEGMENTS),
        (ring_of(96, 112, begin=95), NO_SEGMENTS),
        ({**GOOD, "segments": [*GOOD["segments"][:2], [120, 144, file_of(120, 144)]]}, NO_SEGMENTS),
        ({**GOOD, "segments": [GOOD["segments"][0], GOOD["segments"][2]]}, NO_SEGMENTS),
        ({**GOOD, "segments": [*GOOD["segments"], [144, 144, file_of(144, 144)]]}, NO_SEGMENTS),
        ({**ring_of(0, 1, rows=1), "segments": [[False, 1, file_of(0, 1)]]}, NO_SEGMENTS),
        ({**ring_of(0, 1, rows=1), "segments": [[0, True, file_of(0, 1)]]}, NO_SEGMENTS),
        ({**ring_of(0, 1, rows=1), "segments": [[False, True, file_of(0, 1)]]}, NO_SEGMENTS),
        ({**ring_of(0, 1, rows=1), "segments": [[0.0, 1.0, file_of(0, 1)]]}, NO_SEGMENTS),
        ({**ring_of(0, 16), "segments": [[0, 16, "state.json"]]}, NO_SEGMENTS),
        ({**ring_of(0, 16), "segments": [[0, 16, file_of(0, 16) + "\n"]]}, NO_SEGMENTS),
        ({**ring_of(0, 16), "segments": [[0, 16, None]]}, NO_SEGMENTS),
        ({**ring_of(0, 16), "segments": [[0, 16, b"x"]]}, NO_SEGMENTS),
        (ring_of(0, 16, end=20), NO_END),
        (ring_of(0, 16, end=15), NO_END),
        ({**GOOD, "segments": []}, NO_END),
        ({**GOOD, "frames": {"f": []}}, NO_FRAMES),
        ({**GOOD, "frames": {"f": "xy"}}, NO_FRAMES),
        ({**GOOD, "frames": {"f": ["x", 5]}}, NO_FRAMES),
        ({**GOOD, "frames": {5: ["x"]}}, NO_FRAMES),
        ({**GOOD, "frames": {"f": ["x", "x"]}}, NO_FRAMES),
        ({**GOOD, "frames": {"f": ["f"]}}, NO_FRAMES),
        ({**GOOD, "frames": {"f": ["x"], "g": ["x"]}}, NO_FRAMES),
    ],
    ids=str,
)  # fmt: skip
def test_rings_that_nobody_writes_are_refused(ring: dict[str, Any], why: str) -> None:
    files = {file: {} for _, _, file in ring["segments"]}
    with pytest.raises(ValueError, match=why):
        check_rings({"whole": GOOD, "r": ring}, {**files, **{file: {} for file in row_files({"": GOOD})}})


def test_segments_that_the_manifest_does_not_prove_are_refused() -> None:
    with pytest.raises(ValueError, match=NO_SEGMENTS):
        check_rings({"r": GOOD}, {file: {} for file in row_files({"": GOOD})[:-1]})
    with pytest.raises(ValueError, match="rings must be a mapping"):
        check_rings([], {})
    check_rings({}, {})


def test_only_rings_that_somebody_knows_are_shared(tmp_path: Path) -> None:
    state = numbered(0, 9).joined(numbered(4, 6, name="s"))
    manifest, found = saved(tmp_path / "c", state)
    assert found.keys() == {"r", "s"}
    assert saved_rows(tmp_path / "c", manifest, {"s": "b"}) == {"s": replace(found["s"], numbering="b")}
    assert saved_rows(tmp_path, {"files": {}}, {"s": "b"}) == {}
    (segment,) = found["s"].segments
    name = "replay/1-000000000004-000000000006.safetensors"
    assert segment == Segment(4, 6, tmp_path / "c" / name, manifest["files"][name])
    assert write_rings(tmp_path, {}) == ({}, {})
    assert not (tmp_path / "replay").exists(), "there are no rows"
    assert_read(tmp_path / "c", manifest, state)


def forged(place: Path, manifest: dict[str, Any], number: int, content: bytes) -> None:
    name = row_files(manifest["rings"])[number]
    (place / name).unlink()
    (place / name).write_bytes(content)
    manifest["files"][name] = proof_of(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: {"x": found["x"]},
        lambda found: {**found, "z": found["x"]},
        lambda found: {"x": found["x"], "z": found["y"]},
        lambda found: {**found, "x": found["x"][:-1]},
        lambda found: {**found, "x": np.concatenate([found["x"], found["x"]])},
        lambda found: {**found, "y": found["y"][:, :1]},
        lambda found: {**found, "y": found["y"].astype(np.float32)},
        lambda found: {**found, "y": found["y"].view(np.uint32)},
        lambda found: {**found, "x": found["x"][:, 0]},
        lambda found: {**found, "x": found["x"][0, 0]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_of_other_rows_is_refused(tmp_path: Path, change: Any, number: int) -> None:
    manifest, _ = saved(tmp_path / "c", numbered(4, 24))
    name = row_files(manifest["rings"])[number]
    columns = change(load((tmp_path / "c" / name).read_bytes()))
    forged(tmp_path / "c", manifest, number, save({key: np.ascontiguousarray(each) for key, each in columns.items()}))
    with pytest.raises(CheckpointError, match="has other rows than its manifest says"):
        read_rings(tmp_path / "c", manifest)


def test_a_damaged_segment_is_refused(tmp_path: Path) -> None:
    manifest, _ = saved(tmp_path / "c", numbered(4, 24))
    names = row_files(manifest["rings"])
    file = tmp_path / "c" / names[1]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\x7f")
    with pytest.raises(CheckpointError, match=f"{names[1]} is not what was saved .SHA-256 differs"):
        read_rings(tmp_path / "c", manifest)
    (tmp_path / "c" / names[0]).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{names[0]} is not what was saved .its size differs"):
        read_rings(tmp_path / "c", manifest)
    (tmp_path / "c" / names[0]).unlink()
    with pytest.raises(CheckpointError, match=f"{names[0]} cannot be read .No such file"):
        read_rings(tmp_path / "c", manifest)


def test_a_ring_that_is_claimed_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    row, rows = 1 << 20, 1 << 20
    content = save({"x": np.zeros((4, row), np.uint8)})
    (tmp_path / "replay").mkdir()
    (tmp_path / file_of(0, rows)).write_bytes(content)
    manifest = {"rings": {"r": ring_of(0, rows, rows=rows)}, "files": {file_of(0, rows): proof_of(content)}}
    with pytest.raises(CheckpointError, match="has other rows than its manifest says"):
        read_rings(tmp_path, manifest)


def test_a_ring_of_large_rows_is_not_taken_for_a_huge_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_segments, "SEGMENT_BYTES", 16 << 10)  # all of them
    rows = np.arange(16 << 10, dtype=np.uint8).reshape(4, 4 << 10)
    state = State({}, {"r.x.0": rows}, rings={"r": Ring("a", 96, 100, 8, ("x",))})
    manifest, _ = saved(tmp_path / "c", state)
    assert len(manifest["files"]) == 1
    assert_read(tmp_path / "c", manifest, state)


def test_segments_are_held_against_the_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not those of a megabyte at most, which are always read."""
    (tmp_path / "replay").mkdir()
    for number, (total, free, is_read) in enumerate(
        [(1 << 20, 0, True), ((1 << 20) + 8, 0, False), (1 << 21, (1 << 21) - 1, False), (1 << 21, 1 << 21, True)]
    ):
        half = len(save({"x": np.zeros((1, 1 << 18), np.uint8)})) - (1 << 18)
        sizes = [total // 2 - half, total - total // 2 - half]
        contents = [save({"x": np.zeros((1, size), np.uint8)}) for size in sizes]
        assert sum(map(len, contents)) == total
        manifest: dict[str, Any] = {"rings": {}, "files": {}}
        for which, content in enumerate(contents):
            name = f"replay/{number}{which}-{0:012d}-{1:012d}.safetensors"
            (tmp_path / name).write_bytes(content)
            manifest["files"][name] = proof_of(content)
            manifest["rings"][f"r{which}"] = {"begin": 0, "end": 1, "rows": 1, "segments": [[0, 1, name]]}
        monkeypatch.setattr(row_segments, "available_memory", lambda free=free: free)
        if is_read:
            assert len(read_rings(tmp_path, manifest)[0]) == 2
        else:
            with pytest.raises(CheckpointError, match=r"replay has .* and only .* of memory are free"):
                read_rings(tmp_path, manifest)
