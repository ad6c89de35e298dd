"""Images of observations, each frame of them kept once, however many observations have it.

Four stacked frames come back in the next observation, but for the oldest, and every observation is also the successor
of another. Equal frames are found by their bytes, so it does not matter which environment they come from, or when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from sys import getsizeof
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from shoal.machine.memory import available_memory, bytes_text

Integers = NDArray[np.int32]
Words = NDArray[np.uint64]

CHUNK_BYTES = 16 << 20
"""About as much memory is taken at a time."""
LEAST_LEFT = 128 << 20
"""Bytes of memory that must stay available for all else."""
SMALLEST = 4 << 10
"""Bytes of an observation's image from which on its frames are looked for."""
MOST_FRAMES = 16
COLOURS = 3
SLICE_ROWS = 256  # that are put or taken at a time where there are many

BESIDE_FRAME = 144
"""Bytes that are needed for each frame beside its own: a count, a hash, and where that leads to."""


_STORES: WeakSet[FrameStore] = WeakSet()


def memory_of_frames() -> int:
    """Bytes that the frames of this process take: a replay that goes on from a state which was read takes them over."""
    return sum(store.nbytes for store in _STORES)


class FrameStore:
    """Frames `[*shape]` of one type, by ids. Each has a count of those who hold it, and is forgotten when that is 0.

    Whatever somebody holds stays as it is, so another thread may take it while frames are added.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.frame_bytes = prod(self.shape) * self.dtype.itemsize
        assert self.frame_bytes > 0
        self._width = -(-self.frame_bytes // 8)  # in words of eight bytes
        self._chunk_rows = max(CHUNK_BYTES // (8 * self._width), 1)
        self._chunks: list[Words] = []
        self._counts: Integers = np.zeros(0, np.int32)
        self._hashes: Words = np.zeros(0, np.uint64)
        self._known: dict[int, int] = {}  # the id of the frame that has a hash
        self._free: list[int] = []
        self._used = 0  # ids that have ever been given away
        _STORES.add(self)
        self._factors = np.random.default_rng(0).integers(0, 1 << 64, self._width, np.uint64) | np.uint64(1)

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        arrays = sum(chunk.nbytes for chunk in self._chunks) + self._counts.nbytes + self._hashes.nbytes
        return arrays + getsizeof(self._known) + (32 + 36) * len(self._known)  # with the numbers in it

    def put(self, frames: NDArray[Any]) -> Integers:
        """Hold each of the frames `[M, *shape]` once more; returns their ids `[M]`. MemoryError if there is no room."""
        words = self._as_words(frames)
        hashes = self._hashes_of(words)
        ids = np.empty(len(words), np.int32)
        for k, key in enumerate(hashes.tolist()):
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._new(words[k], hashes[k])
            ids[k] = found
        differs = (self._words_at(ids) != words).any(axis=1)
        for k in np.flatnonzero(differs).tolist():  # by chance another frame has its hash: this one is not found again
            ids[k] = self._new(words[k], hashes[k])
        self.hold(ids)
        return ids

    def take(self, ids: Integers) -> NDArray[Any]:
        """The frames `[M, *shape]` of ids `[M]`."""
        words = self._words_at(ids)
        if self.frame_bytes == 8 * self._width:
            return words.view(self.dtype).reshape(len(ids), *self.shape)
        parts = words.view(np.uint8)[:, : self.frame_bytes]
        return np.ascontiguousarray(parts).view(self.dtype).reshape(len(ids), *self.shape)

    def hold(self, ids: Integers) -> None:
        """Hold frames that are there once more."""
        np.add.at(self._counts, ids, 1)

    def drop(self, ids: Integers) -> None:
        """Hold frames once less; what nobody holds any more is forgotten."""
        np.subtract.at(self._counts, ids, 1)
        gone = np.unique(ids[self._counts[ids] == 0])
        for found, key in zip(gone.tolist(), self._hashes[gone].tolist(), strict=True):
            if self._known.get(key) == found:
                del self._known[key]
            self._free.append(found)

    def _new(self, words: Words, key: np.uint64) -> int:
        """Write a frame where there is room; nobody holds it yet."""
        if self._free:
            found = self._free.pop()
        else:
            if self._used == len(self._chunks) * self._chunk_rows:
                self._grow()
            found = self._used
            self._used += 1
        chunk, row = divmod(found, self._chunk_rows)
        self._chunks[chunk][row] = words
        self._hashes[found] = key
        return found

    def _grow(self) -> None:
        """Take memory for more frames, if that leaves enough for all else: the system would end the process later."""
        left = available_memory() - 8 * self._width * self._chunk_rows
        if self._chunks and left < LEAST_LEFT:
            raise MemoryError(f"frames take {bytes_text(self.nbytes)}, and there is no memory for more")
        counts = np.zeros(len(self._counts) + self._chunk_rows, np.int32)
        hashes = np.zeros(len(counts), np.uint64)
        counts[: len(self._counts)], hashes[: len(self._hashes)] = self._counts, self._hashes
        self._chunks.append(np.empty((self._chunk_rows, self._width), np.uint64))
        self._counts, self._hashes = counts, hashes

    def _words_at(self, ids: Integers) -> Words:
        found = np.empty((len(ids), self._width), np.uint64)
        chunks = self._chunks
        places = [part.tolist() for part in np.divmod(ids, self._chunk_rows)]
        for k, (chunk, row) in enumerate(zip(*places, strict=True)):
            found[k] = chunks[chunk][row]
        return found

    def _as_words(self, frames: NDArray[Any]) -> Words:
        """The bytes of frames `[M, *shape]` as words `[M, W]`, with zeros at the end where they are no multiple."""
        assert frames.shape[1:] == self.shape
        content = np.ascontiguousarray(frames, self.dtype).reshape(len(frames), prod(self.shape)).view(np.uint8)
        if self.frame_bytes < 8 * self._width:
            content = np.pad(content, ((0, 0), (0, 8 * self._width - self.frame_bytes)))
        return content.view(np.uint64)

    def _hashes_of(self, words: Words) -> Words:
        """A number for each row that says which it is, but for chance.

        The highest bit of a word alone would change the highest of the sum alone, so it changes one in the middle too.
        """
        return np.asarray((words ^ (words >> np.uint64(32))) @ self._factors)


@dataclass(frozen=True, eq=False)
class Frames:
    """A store, and which columns of a ring hold ids of its frames."""

    store: FrameStore
    columns: tuple[str, ...]


@dataclass(frozen=True)
class FrameLayout:
    """How an image of an observation consists of frames: along its first axis, its last, or as one frame."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int | None  # 0, -1, or None

    @classmethod
    def of(cls, shape: Sequence[int], dtype: np.dtype[Any]) -> FrameLayout | None:
        """The layout of observations that are images of at least 4 KiB; None for all others.

        In an image of three axes or more, a first or last axis of 2 to 16 counts frames, the shorter if both do. Three
        are colours of one frame. All other images, and fields of two axes, are one frame.
        """
        if len(shape) < 2 or prod(shape) * dtype.itemsize < SMALLEST:
            return None
        axes = [(shape[axis], axis == -1, axis) for axis in (0, -1)]
        counts = [found for found in axes if 2 <= found[0] <= MOST_FRAMES and found[0] != COLOURS]
        axis = min(counts)[2] if len(shape) > 2 and counts else None
        return cls(tuple(shape), dtype, axis)

    @property
    def count(self) -> int:
        """Frames in an observation."""
        return 1 if self.axis is None else self.shape[self.axis]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of a frame."""
        if self.axis is None:
            return self.shape
        return self.shape[1:] if self.axis == 0 else self.shape[:-1]

    @property
    def bytes_per_step(self) -> int:
        """About what each step adds: one frame, or one for each colour where so many would be whole images."""
        new = COLOURS if self.count % COLOURS == 0 else 1
        return new * (prod(self.frame_shape) * self.dtype.itemsize + BESIDE_FRAME)

    def split(self, obs: NDArray[Any]) -> NDArray[Any]:
        """The frames of observations `[B, *shape]`, one after another."""
        if self.axis == -1:
            obs = np.moveaxis(obs, -1, 1)
        return np.ascontiguousarray(obs).reshape(-1, *self.frame_shape)

    def joined(self, frames: NDArray[Any]) -> NDArray[Any]:
        """The observations of so many frames."""
        if self.axis != -1:
            return frames.reshape(-1, *self.shape)
        apart = frames.reshape(-1, self.count, prod(self.frame_shape))
        if self.dtype.itemsize == 1 and self.count in (
            2,
            4,
            8,
        ):  # bytes of one number, which two at a time make: faster
            numbers: NDArray[Any] = apart.view(np.uint8)
            while numbers.shape[1] > 1:
                bits = 8 * numbers.itemsize
                pairs = numbers[:, 1::2].astype(f"<u{2 * numbers.itemsize}")
                pairs <<= bits
                pairs |= numbers[:, ::2]
                numbers = pairs
            return numbers.view(self.dtype).reshape(-1, *self.shape)
        obs = np.empty((len(apart), apart.shape[2], self.count), self.dtype)
        for k in range(self.count):
            obs[:, :, k] = apart[:, k]
        return obs.reshape(-1, *self.shape)


class ImageFrames:
    """The images of one part of observations in a store, as ids `[B, S]` of the frames in each."""

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        self.store = FrameStore(layout.frame_shape, layout.dtype)

    def put(self, obs: NDArray[Any]) -> Integers:
        """Hold the frames of observations `[B, *shape]`."""
        ids = np.empty((len(obs), self.layout.count), np.int32)
        for begin in range(0, len(obs), SLICE_ROWS):
            rows = slice(begin, begin + SLICE_ROWS)
            ids[rows] = self.store.put(self.layout.split(obs[rows])).reshape(-1, self.layout.count)
        return ids

    def take(self, ids: Integers) -> NDArray[Any]:
        """The observations `[B, *shape]` of ids `[B, S]`."""
        return self.layout.joined(self.store.take(ids.reshape(-1)))

    def drop(self, ids: Integers) -> None:
        """Let go of the frames of observations; what is less than 0 is none."""
        self.store.drop(ids[ids >= 0])

    def shared(self, frames: Frames, ids: NDArray[Any]) -> Integers:
        """Hold the frames of another's ids `[B, S]`, in whose store those that come next are put too."""
        store = frames.store
        if (store.shape, store.dtype) != (self.store.shape, self.store.dtype) or ids.shape[1:] != (self.layout.count,):
            raise ValueError(f"{frames.columns[0]} has frames of {store.shape} instead of {self.store.shape}")
        store.hold(ids.reshape(-1))
        return ids
