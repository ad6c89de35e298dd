"""From stored observations to what a network reads: one-hot for choices, the running filter for measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.data.filters import MeanStdFilter
from shoal.envs.observations import Kind, ObsSpec
from shoal.envs.spaces import Path, Space
from shoal.models.network import Inputs

MOST_ONE_HOT_CHOICES = 1024

Change = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Place:
    """Where a leaf of the observation lies in a network's inputs."""

    path: Path
    kind: Kind
    part: int
    columns: slice | None  # None where the whole part is the leaf's
    shape: tuple[int, ...]  # of one observation's leaf


class Encoder:
    """Encodes observations: their vector part, sequences, and images of wide integers; all else passes untouched.

    - A discrete number with n values becomes n indicators (above 1024 values: its binary digits); a binary one stays.
    - Integers of a bounded Box (a RAM dump, a 16-bit image) are scaled to [0, 1]; the network itself scales bytes.
    - Floats stay as they are, or pass the observation filter where there is one.
    - Items of sequences are encoded alike, but never filtered: they have no place of their own to be filtered by.
    """

    def __init__(self, spec: ObsSpec, observation_filter: MeanStdFilter | None = None) -> None:
        self.spec = spec
        self.filter = observation_filter
        size = spec.vector_size
        self.measured = np.zeros(size, bool)  # which columns the filter applies to
        scale, shift = np.ones(size, np.float32), np.zeros(size, np.float32)
        plain: list[int] = []
        columns_of: dict[Path, slice] = {}
        for leaf in spec.leaves:
            columns = leaf.columns
            if leaf.kind != "vector" or columns is None:
                continue
            if leaf.choices is not None and not isinstance(leaf.space, spaces.MultiBinary):
                continue
            columns_of[leaf.path] = slice(len(plain), len(plain) + columns.stop - columns.start)
            plain.extend(range(columns.start, columns.stop))
            if leaf.choices is None:
                self.measured[columns] = True
                assert isinstance(leaf.space, spaces.Box)
                if np.issubdtype(leaf.space.dtype or np.float32, np.integer) and leaf.space.is_bounded():
                    low = leaf.space.low.reshape(-1).astype(np.float64)
                    width = np.maximum(leaf.space.high.reshape(-1).astype(np.float64) - low, 1)
                    scale[columns], shift[columns] = 1 / width, -low / width
        self._plain = np.array(plain, np.int64)
        self._all_plain = len(plain) == size
        self._scale = scale if (scale != 1).any() or shift.any() else None
        self._shift = shift
        self._choices: list[tuple[int, int, int]] = []  # column in the vector, number of values, number of features
        self.size = len(plain)
        for leaf in spec.leaves:
            if leaf.choices is None or leaf.columns is None or isinstance(leaf.space, spaces.MultiBinary):
                continue
            begin = self.size
            for column, count in enumerate(leaf.choices.tolist(), start=leaf.columns.start):
                self._choices.append((column, count, count if count <= MOST_ONE_HOT_CHOICES else _num_digits(count)))
                self.size += self._choices[-1][2]
            columns_of[leaf.path] = slice(begin, self.size)
        self._tables = {n: np.eye(n, dtype=np.float32) for _, n, width in self._choices if width == n}

        changes: dict[int, Change] = {}
        self.shapes = list(spec.shapes)  # of the inputs
        if size:
            self.shapes[0] = (self.size,)
        for leaf in spec.leaves:
            change = _image_change(leaf.space) if leaf.kind == "image" else None
            if leaf.items is not None:
                item = Encoder(leaf.items.spec)
                self.shapes[leaf.part] = (leaf.items.max_len, 1 + item.size)
                change = item.encode_items if item.changes_anything else None
            if change is not None:
                changes[leaf.part] = change
        first = 1 if size else 0
        self._changes = [changes.get(part) for part in range(first, len(spec.kinds))] if changes else []
        self.places = tuple(
            Place(
                leaf.path, leaf.kind, leaf.part, columns_of[leaf.path], _place_shape(leaf.space, columns_of[leaf.path])
            )
            if leaf.kind == "vector"
            else Place(leaf.path, leaf.kind, leaf.part, leaf.columns, leaf.shape)
            for leaf in spec.leaves
        )

    @property
    def changes_anything(self) -> bool:
        """Whether features are other numbers than those that are stored."""
        return not self._all_plain or self._scale is not None

    def __call__(self, parts: Parts) -> Inputs:
        """Encoded inputs for a batch of observations, each part `[B, ...]`."""
        others = parts[1:] if self.spec.vector_size else parts
        if self._changes:
            others = tuple(
                part if change is None else change(part) for part, change in zip(others, self._changes, strict=True)
            )
        return (self.encode(parts[0]), *others) if self.spec.vector_size else others

    def encode(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features `[B, D]` of the vector part `[B, R]`; the same array where nothing needs to change."""
        x = raw
        if self._scale is not None:
            x = x * self._scale + self._shift
        if self.filter is not None:
            x = self.filter(x)
        if self._all_plain:
            return x
        out = np.empty((len(raw), self.size), np.float32)
        column = len(self._plain)
        if column:
            out[:, :column] = x[:, self._plain]
        for source, count, width in self._choices:
            # Environments do step out of their spaces (at an episode's end, say): the nearest value stands for it.
            values = raw[:, source].astype(np.int64)
            if count in self._tables:
                out[:, column : column + width] = self._tables[count].take(values, axis=0, mode="clip")
            else:
                out[:, column : column + width] = (np.clip(values, 0, count - 1)[:, None] >> np.arange(width)) & 1
            column += width
        return out

    def encode_items(self, part: NDArray[np.float32]) -> NDArray[np.float32]:
        """Items `[B, L, 1 + D]` of a sequence `[B, L, 1 + R]`, with this encoder for each of them."""
        rows = part.reshape(-1, part.shape[2])
        out = np.concatenate([rows[:, :1], self.encode(rows[:, 1:])], axis=1)
        return out.reshape(*part.shape[:2], out.shape[1])

    def measurements(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the filter learns from: the vector part after scaling, before filtering."""
        return raw if self._scale is None else raw * self._scale + self._shift


def _place_shape(space: Space, columns: slice) -> tuple[int, ...]:
    """The shape in which a leaf of the vector is shown: its own, or one row of indicators."""
    own = isinstance(space, spaces.Box | spaces.MultiBinary) and bool(space.shape)
    return tuple(space.shape or ()) if own else (columns.stop - columns.start,)


def _image_change(image: Space) -> Change | None:
    """An image of wide integers is moved to [0, 1]; bytes are scaled by the network, floats stay."""
    assert isinstance(image, spaces.Box)
    if image.dtype == np.uint8 or not np.issubdtype(image.dtype or np.float32, np.integer) or not image.is_bounded():
        return None
    low, high = float(image.low.min()), float(image.high.max())
    least, factor = np.float32(low), np.float32(1 / max(high - low, 1))
    return lambda part: (part - least) * factor


def _num_digits(count: int) -> int:
    """Binary digits that tell `count` values apart."""
    return int(count - 1).bit_length()
