"""Rows that only grow, such as replay, in files that checkpoints share: each costs what is new since the one before.

The rows of a `Ring` are cut into segments at fixed numbers. A segment that is full never changes, so the next
checkpoint has it by a hard link, or by a copy where there are no links; only rows that no segment has are written. A
checkpoint is whole without the others: its folder has all its segments, and its manifest the size and SHA-256 of each.
The oldest segment may begin with rows that no longer count.

Where rows have ids of frames (`data/frames.py`), each segment has the frames of its own rows, and ids that count them.
"""

from __future__ import annotations

import os
import re
import stat
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from shoal.data.frames import SLICE_ROWS, Frames, FrameStore
from shoal.data.state import Ring, State
from shoal.errors import CheckpointError, RowsLost
from shoal.machine.memory import available_memory, bytes_text
from shoal.runs.array_files import Arrays, arrays_bytes, arrays_in
from shoal.runs.atomic_files import write_file
from shoal.runs.bounded_files import bounded_bytes, proof_of

ROWS_FOLDER, ROWS_LIMIT = "replay", 1 << 40
"""The folder for segments in a checkpoint, and the most bytes that one of them may have."""
SEGMENT_BYTES = 4 << 20
"""About the size of a segment: as much may be written again with every checkpoint, for the last is not full."""
MOST_SEGMENTS = 2048
"""Of one ring; those of a larger one are larger."""

_FILE = re.compile(rf"{ROWS_FOLDER}/\d+-\d{{12,18}}-\d{{12,18}}\.safetensors")


@dataclass(frozen=True)
class Segment:
    """The rows `begin` to `end` of a ring, in a file of a checkpoint."""

    begin: int
    end: int
    file: Path
    proof: Mapping[str, Any]


@dataclass(frozen=True)
class SavedRows:
    """The rows of a ring that a checkpoint has."""

    numbering: str
    segments: tuple[Segment, ...]

    def shared_with(self, ring: Ring) -> tuple[Segment, ...]:
        """Those segments that hold rows of a ring."""
        if self.numbering == ring.numbering:
            return self.segments
        if ring.follows is None or ring.follows[0] != self.numbering:
            return ()
        return tuple(segment for segment in self.segments if segment.end <= ring.follows[1])


@dataclass(frozen=True)
class NewRows:
    """The rows `begin` to `end` of a ring, which no file has."""

    begin: int
    end: int
    columns: Arrays
    frames: Mapping[str, Frames] = field(default_factory=dict)  # that are still to be taken from where they are

    @property
    def size(self) -> int:
        """The bytes that these rows have in a file."""
        of_frames = sum(len(self._ids(each)) * each.store.frame_bytes for each in self.frames.values())
        return _size(self.columns) + of_frames

    def packed(self) -> Arrays:
        """The arrays of a file: columns, and the frames that theirs are ids of."""
        arrays = dict(self.columns)
        for name, each in self.frames.items():
            ids = self._ids(each)
            arrays[name] = each.store.take(ids)
            arrays |= {column: np.searchsorted(ids, arrays[column]).astype(np.int32) for column in each.columns}
        return arrays

    def _ids(self, frames: Frames) -> NDArray[Any]:
        """Which frames of a store these rows have, in ascending order."""
        return np.unique(np.concatenate([self.columns[column].reshape(-1) for column in frames.columns]))


@dataclass(frozen=True)
class RingSnapshot:
    """The rows of a ring at one time, in order: what files have, and what is new."""

    ring: Ring
    pieces: tuple[Segment | NewRows, ...]


@dataclass(frozen=True)
class Snapshot:
    """A state that stays what it is while training goes on."""

    values: dict[str, Any]
    arrays: Arrays
    files: dict[str, bytes]
    rings: dict[str, RingSnapshot]


def snapshot(state: State, saved: Mapping[str, SavedRows] | None = None, copies: bool = True) -> Snapshot:
    """The state with the rows that `saved` has left out; without `copies` it is good only until training goes on."""
    rings: dict[str, RingSnapshot] = {}
    of_rings: set[str] = set()
    for name, ring in state.rings.items():
        if ring.begin < ring.end:
            of_rings |= {f"{name}.{column}.{k}" for column in ring.columns for k in (0, 1)}
            known = saved[name].shared_with(ring) if saved and name in saved else ()
            rings[name] = RingSnapshot(ring, tuple(_pieces(state, name, ring, known, copies)))
    arrays = {name: _kept(array, copies) for name, array in state.arrays.items() if name not in of_rings}
    return Snapshot(state.values, arrays, state.files, rings)


def copied_bytes(state: State, saved: Mapping[str, SavedRows]) -> int:
    """How much memory a snapshot with copies takes."""
    taken = snapshot(state, saved, copies=False)
    pieces = [piece for one in taken.rings.values() for piece in one.pieces]
    rows = sum(piece.size for piece in pieces if isinstance(piece, NewRows))
    return rows + _size({name: array for name, array in taken.arrays.items() if not array.flags.owndata})


def moved_to(taken: Snapshot, saved: Mapping[str, SavedRows]) -> Snapshot:
    """The snapshot with all that a newer checkpoint has shared with that: what it was to share may be gone by now."""
    rings: dict[str, RingSnapshot] = {}
    for name, one in taken.rings.items():
        newer = saved.get(name)
        there: dict[tuple[int, int], Segment] = {}
        if newer is not None and newer.numbering == one.ring.numbering:
            there = {(segment.begin, segment.end): segment for segment in newer.segments}
        pieces = tuple(there.get((piece.begin, piece.end), piece) for piece in one.pieces)
        rings[name] = replace(one, pieces=pieces)
    return replace(taken, rings=rings)


def write_rings(place: Path, rings: Mapping[str, RingSnapshot]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the segments of a new checkpoint into its folder; what its manifest says of the rings, and of the files."""
    told: dict[str, Any] = {}
    files: dict[str, Any] = {}
    if rings:
        (place / ROWS_FOLDER).mkdir()
    for number, (name, one) in enumerate(rings.items()):
        segments: list[list[Any]] = []
        for piece in one.pieces:
            file = f"{ROWS_FOLDER}/{number}-{piece.begin:012d}-{piece.end:012d}.safetensors"
            segments.append([piece.begin, piece.end, file])
            files[file] = _write_new(place / file, piece) if isinstance(piece, NewRows) else _share(place / file, piece)
        told[name] = {"begin": one.ring.begin, "end": one.ring.end, "rows": one.ring.rows, "segments": segments}
        if one.ring.frames:
            told[name]["frames"] = {key: list(each.columns) for key, each in one.ring.frames.items()}
    return told, files


def check_rings(rings: Any, files: Mapping[str, Any]) -> None:
    """Raise ValueError for rings of a manifest that are not what we write."""
    if not isinstance(rings, dict):
        raise ValueError("rings must be a mapping")
    for name, ring in rings.items():
        numbers = [ring["begin"], ring["end"], ring["rows"]]
        at = begin = ring["begin"]
        if any(type(number) is not int for number in numbers) or not 0 <= begin < ring["end"] <= begin + ring["rows"]:
            raise ValueError(f"the numbers of {name} make no ring")
        for first, last, file in ring["segments"]:
            is_next = type(first) is type(last) is int and first <= at < last and (first == at or at == begin)
            if not is_next or not isinstance(file, str) or not _FILE.fullmatch(file) or file not in files:
                raise ValueError(f"the segments of {name} are not those of a ring")
            at = last
        if at != ring["end"]:
            raise ValueError(f"the segments of {name} end too early or too late")
        _check_frames(name, ring.get("frames", {}))


def have_frames(rings: Mapping[str, Any]) -> bool:
    """Whether rows of a manifest's rings have ids of frames."""
    return any("frames" in ring for ring in rings.values())


def row_files(rings: Mapping[str, Any]) -> list[str]:
    """The files of segments that a manifest names."""
    return [file for ring in rings.values() for _, _, file in ring["segments"]]


def saved_rows(folder: Path, manifest: Mapping[str, Any], numberings: Mapping[str, str]) -> dict[str, SavedRows]:
    """What a checkpoint has of each ring, by its checked manifest."""
    found: dict[str, SavedRows] = {}
    for name, ring in manifest.get("rings", {}).items():
        segments = [Segment(a, b, folder / file, manifest["files"][file]) for a, b, file in ring["segments"]]
        if name in numberings:
            found[name] = SavedRows(numberings[name], tuple(segments))
    return found


class FramesRead:
    """The frames of a ring's segments, put into stores one segment after another; by name, with ids in `columns`."""

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = columns
        self._stores: dict[str, FrameStore] = {}
        self._held: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
        self._here: Arrays = {}  # of the segment that is being read

    def taken_out(self, found: Arrays, file: str) -> Arrays:
        """The rows of a segment without its frames."""
        try:
            self._here = {name: found[name] for name in self._columns}
        except KeyError as error:
            raise _other_rows(file) from error
        return {key: array for key, array in found.items() if key not in self._columns}

    def put(self, found: Arrays, file: str) -> Arrays:
        """The columns of a segment's rows that have ids, as ids of the stores."""
        columns: Arrays = {}
        for name, images in self._here.items():
            ids = {column: found.get(column) for column in self._columns[name]}
            if any(each is None or each.dtype != np.int32 or each.ndim != 2 for each in ids.values()):
                raise _other_rows(file)
            used = np.unique(np.concatenate([found[column].reshape(-1) for column in ids]))
            if not (images.ndim and images.nbytes and len(used)) or not 0 <= used[0] <= used[-1] < len(images):
                raise _other_rows(file)
            store = self._stores.setdefault(name, FrameStore(images.shape[1:], images.dtype))
            if (images.shape[1:], images.dtype) != (store.shape, store.dtype):
                raise _other_rows(file)
            slices = [used[k : k + SLICE_ROWS] for k in range(0, len(used), SLICE_ROWS)]
            try:
                there = np.concatenate([store.put(images[rows]) for rows in slices])
            except MemoryError as error:
                raise CheckpointError(f"{ROWS_FOLDER} is too much for the memory: {error}") from error
            self._held[name].append(there)
            columns |= {column: there[np.searchsorted(used, found[column])] for column in ids}
        return columns

    def found(self) -> dict[str, Frames]:
        """The stores, whose frames stay at least as long as the state that is read has them."""
        frames = {name: Frames(store, tuple(self._columns[name])) for name, store in self._stores.items()}
        for name, each in frames.items():
            weakref.finalize(each, each.store.drop, np.concatenate(self._held[name])).atexit = False
        return frames


def read_rings(place: Path, manifest: Mapping[str, Any]) -> tuple[Arrays, dict[str, Ring]]:
    """The arrays of all rings, each byte compared with its hash, and the rings, with numberings of their own."""
    arrays: Arrays = {}
    rings: dict[str, Ring] = {}
    told = manifest.get("rings", {})
    _check_sizes(place, row_files(told), manifest["files"])
    for name, entry in told.items():
        ring = Ring(uuid4().hex, entry["begin"], entry["end"], entry["rows"], ())
        frames = FramesRead(entry.get("frames", {}))
        columns = _read_ring(place, ring, entry["segments"], manifest["files"], frames)
        rings[name] = replace(ring, columns=tuple(columns), frames=frames.found())
        for column, parts in columns.items():
            arrays |= {f"{name}.{column}.{number}": part for number, part in enumerate(parts)}
    return arrays, rings


def _pieces(state: State, name: str, ring: Ring, known: Sequence[Segment], copies: bool) -> Iterable[Segment | NewRows]:
    """The rows of a ring in order, with as many of the known segments as can be shared."""
    size = _segment_rows(state, name, ring)
    blocks = {(segment.end - 1) // size: segment for segment in known}
    at = ring.begin
    while at < ring.end:
        there = blocks.get(at // size)
        if there is not None and there.begin <= at and (there.end % size == 0 or there.end == ring.end):
            yield there
            at = there.end
            continue
        end = min(ring.end, (at // size + 1) * size)
        columns = {column: _rows(state, f"{name}.{column}", ring, at, end, copies) for column in ring.columns}
        rows = NewRows(at, end, columns, ring.frames)
        yield NewRows(at, end, rows.packed()) if copies and ring.frames else rows
        at = end


def _segment_rows(state: State, name: str, ring: Ring) -> int:
    """How many rows a full segment has, a power of two."""
    first = [state.arrays[f"{name}.{column}.0"] for column in ring.columns]
    row_bytes = sum(array[:1].nbytes for array in first)
    row_bytes += sum(each.store.frame_bytes for each in ring.frames.values())  # about one of each to a row
    by_bytes = 1 << max(SEGMENT_BYTES // max(row_bytes, 1), 1).bit_length() - 1
    return max(by_bytes, 1 << (ring.rows // MOST_SEGMENTS).bit_length())


def _rows(state: State, name: str, ring: Ring, begin: int, end: int, copies: bool) -> NDArray[Any]:
    """The rows `begin` to `end` of a column."""
    found = []
    for number, (first, last) in enumerate(ring.stretches()):
        if begin < last and first < end:
            stretch = state.arrays[f"{name}.{number}"]
            found.append(stretch[max(begin, first) - first : min(end, last) - first])
    return _kept(found[0], copies) if len(found) == 1 else np.concatenate(found)


def _kept(array: NDArray[Any], copies: bool) -> NDArray[Any]:
    """The array, or a copy where its memory is somebody else's, who may go on writing it."""
    return array.copy() if copies and not array.flags.owndata else array


def _size(arrays: Mapping[str, NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _write_new(target: Path, rows: NewRows) -> dict[str, Any]:
    content = arrays_bytes(rows.packed(), target.name)
    write_file(target, content)
    return proof_of(content)


def _share(target: Path, segment: Segment) -> Mapping[str, Any]:
    """Put a segment of another checkpoint into this one; a copy is compared with its hash, a link with its size."""
    try:
        os.link(segment.file, target, follow_symlinks=False)
    except OSError:  # there are file systems without links, and with few of them
        _copy(target, segment)
        return segment.proof
    status = target.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size != segment.proof["bytes"]:
        raise _lost(segment)
    return segment.proof


def _copy(target: Path, segment: Segment) -> None:
    try:
        content = bounded_bytes(segment.file, ROWS_LIMIT, segment.proof["bytes"])
    except CheckpointError as error:
        raise _lost(segment) from error
    if proof_of(content) != segment.proof:
        raise _lost(segment)
    write_file(target, content)


def _other_rows(file: str) -> CheckpointError:
    return CheckpointError(f"{file} has other rows than its manifest says")


def _lost(segment: Segment) -> RowsLost:
    return RowsLost(f"{segment.file} is gone or damaged, which the new checkpoint was to share with an earlier one.")


def _check_sizes(place: Path, names: Sequence[str], files: Mapping[str, Any]) -> None:
    """Refuse segments that are not as long as they should be, or too much for the memory, before any is read."""
    total = 0
    for name in names:
        try:
            size = (place / name).lstat().st_size
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read ({error.strerror})") from error
        if size != files[name]["bytes"]:
            raise CheckpointError(f"{name} is not what was saved (its size differs)")
        total += size
    if total > 1 << 20 and total > (free := available_memory()):
        raise CheckpointError(f"{ROWS_FOLDER} has {bytes_text(total)}, and only {bytes_text(free)} of memory are free")


def _read_ring(
    place: Path, ring: Ring, segments: Sequence[Sequence[Any]], files: Mapping[str, Any], frames: FramesRead
) -> dict[str, list[NDArray[Any]]]:
    """Each column of a ring as its stretches."""
    columns: dict[str, list[NDArray[Any]]] = {}
    room = sum(files[name]["bytes"] for _, _, name in segments)
    for begin, end, name in segments:
        content = bounded_bytes(place / name, ROWS_LIMIT, files[name]["bytes"])
        if proof_of(content) != files[name]:
            raise CheckpointError(f"{name} is not what was saved (SHA-256 differs)")
        found = frames.taken_out(arrays_in(content), name)
        if not columns:
            if sum(array[:1].nbytes for array in found.values()) * (ring.end - ring.begin) > room:
                raise _other_rows(name)
            columns = {key: _empty(array, ring) for key, array in found.items()}
        _check_like(name, found, columns, end - begin)
        found = {key: array[max(ring.begin - begin, 0) :] for key, array in found.items()}
        begin = max(begin, ring.begin)
        found |= frames.put(found, name)
        for key, array in found.items():
            _fill(columns[key], ring, array, begin)
    return columns


def _empty(like: NDArray[Any], ring: Ring) -> list[NDArray[Any]]:
    return [np.empty((end - begin, *like.shape[1:]), like.dtype) for begin, end in ring.stretches()]


def _check_like(name: str, found: Arrays, columns: Mapping[str, Sequence[NDArray[Any]]], rows: int) -> None:
    """Refuse a segment that has other columns than the first, or not as many rows as it should."""
    is_like = found.keys() == columns.keys()
    for key, array in found.items():
        first = columns[key][0] if is_like else array
        is_like = is_like and array.shape == (rows, *first.shape[1:]) and array.dtype == first.dtype
    if not is_like:
        raise _other_rows(name)


def _check_frames(name: str, frames: Any) -> None:
    """Raise ValueError for what a manifest says of frames, if it is not what we write."""
    named = [*frames, *(column for columns in frames.values() for column in columns)]
    are_lists = all(isinstance(columns, list) and columns for columns in frames.values())
    if not are_lists or not all(isinstance(key, str) for key in named) or len({*named}) < len(named):
        raise ValueError(f"the frames of {name} are not those of a ring")


def _fill(stretches: Sequence[NDArray[Any]], ring: Ring, rows: NDArray[Any], begin: int) -> None:
    """Put rows where they belong."""
    for (first, last), stretch in zip(ring.stretches(), stretches, strict=True):
        low, high = max(begin, first), min(begin + len(rows), last)
        if low < high:
            stretch[low - first : high - first] = rows[low - begin : high - begin]
