"""From stored observations to what a network reads: one-hot for choices, the running filter for measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.data.filters import MeanStdFilter
from shoal.envs.observations import Kind, ObsLeaf, ObsSpec
from shoal.envs.spaces import Path, Space
from shoal.models.network import Inputs

MOST_ONE_HOT_CHOICES = 1024

Change = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class LeafPlace:
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
        self.measured = np.zeros(spec.vector_size, bool)  # which columns the filter applies to
        self._columns: dict[Path, slice] = {}  # of the leaves of the vector, among the features
        self.plain = self._keep_plain()
        self._all_plain = len(self.plain) == spec.vector_size
        self.scale, self.shift = _scaling(spec.leaves, spec.vector_size)
        self.size = len(self.plain)
        self.choices: list[tuple[int, int, int]] = []  # column in the vector, number of values, number of features
        self._tables: dict[int, NDArray[np.float32]] = {}  # the indicators of each number of values
        self._add_choices()
        self.shapes = list(spec.shapes)  # of the inputs
        if spec.vector_size:
            self.shapes[0] = (self.size,)
        self._changes = self._change_others()
        self.places = tuple(self._place(leaf) for leaf in spec.leaves)

    @property
    def changes_anything(self) -> bool:
        """Whether features are other numbers than those that are stored."""
        return not self._all_plain or self.scale is not None

    def __call__(self, parts: Parts) -> Inputs:
        """Encoded inputs for a batch of observations, each part `[B, ...]`."""
        if not self.spec.vector_size:
            return self._changed(parts)
        return (self.encode(parts[0]), *self._changed(parts[1:]))

    def _changed(self, others: Parts) -> Inputs:
        """The parts beside the vector as a network reads them."""
        if not self._changes:
            return others
        changed = []
        for part, change in zip(others, self._changes, strict=True):
            changed.append(part if change is None else change(part))
        return tuple(changed)

    def encode(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features `[B, D]` of the vector part `[B, R]`; the same array where nothing needs to change."""
        x = raw
        if self.scale is not None:
            x = x * self.scale + self.shift
        if self.filter is not None:
            x = self.filter(x)
        if self._all_plain:
            return x
        out = np.empty((len(raw), self.size), np.float32)
        column = len(self.plain)
        if column:
            out[:, :column] = x[:, self.plain]
        for source, count, width in self.choices:
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
        if self.scale is None:
            return raw
        return raw * self.scale + self.shift

    def _keep_plain(self) -> NDArray[np.int64]:
        """The columns of the vector that stay one feature each, and which of them are measurements."""
        plain: list[int] = []
        for leaf in self.spec.leaves:
            columns = leaf.columns
            if leaf.kind != "vector" or columns is None or _is_choice(leaf):
                continue
            self._columns[leaf.path] = slice(len(plain), len(plain) + columns.stop - columns.start)
            plain.extend(range(columns.start, columns.stop))
            if leaf.choices is None:
                self.measured[columns] = True
        return np.array(plain, np.int64)

    def _add_choices(self) -> None:
        """Give features to the discrete numbers: indicators, or the binary digits of many values."""
        for leaf in self.spec.leaves:
            if leaf.choices is None or leaf.columns is None or not _is_choice(leaf):
                continue
            begin = self.size
            for column, count in enumerate(leaf.choices.tolist(), start=leaf.columns.start):
                width = count
                if count > MOST_ONE_HOT_CHOICES:
                    width = _num_digits(count)
                else:
                    self._tables[count] = np.eye(count, dtype=np.float32)
                self.choices.append((column, count, width))
                self.size += width
            self._columns[leaf.path] = slice(begin, self.size)

    def _change_others(self) -> list[Change | None]:
        """What is done to each part beside the vector; nothing at all if that is so for every part."""
        changes: dict[int, Change] = {}
        for leaf in self.spec.leaves:
            if leaf.kind == "image":
                change = _image_change(leaf.space)
                if change is not None:
                    changes[leaf.part] = change
            if leaf.items is not None:
                item = Encoder(leaf.items.spec)
                self.shapes[leaf.part] = (leaf.items.max_len, 1 + item.size)
                if item.changes_anything:
                    changes[leaf.part] = item.encode_items
        if not changes:
            return []
        first = int(self.spec.vector_size > 0)
        return [changes.get(part) for part in range(first, len(self.spec.kinds))]

    def _place(self, leaf: ObsLeaf) -> LeafPlace:
        """Where a leaf is among the inputs."""
        if leaf.kind != "vector":
            return LeafPlace(leaf.path, leaf.kind, leaf.part, leaf.columns, leaf.shape)
        columns = self._columns[leaf.path]
        return LeafPlace(leaf.path, leaf.kind, leaf.part, columns, _place_shape(leaf.space, columns))


def _is_choice(leaf: ObsLeaf) -> bool:
    """Whether the numbers of a leaf stand for one of several values each; binary ones are features as they are."""
    return leaf.choices is not None and not isinstance(leaf.space, spaces.MultiBinary)


def _scaling(leaves: Sequence[ObsLeaf], size: int) -> tuple[NDArray[np.float32] | None, NDArray[np.float32]]:
    """Factor and shift that bring bounded integers to [0, 1]; no factor where there are none."""
    scale, shift = np.ones(size, np.float32), np.zeros(size, np.float32)
    for leaf in leaves:
        if leaf.kind != "vector" or leaf.columns is None or leaf.choices is not None:
            continue
        assert isinstance(leaf.space, spaces.Box)
        if np.issubdtype(leaf.space.dtype or np.float32, np.integer) and leaf.space.is_bounded():
            low = leaf.space.low.reshape(-1).astype(np.float64)
            width = np.maximum(leaf.space.high.reshape(-1).astype(np.float64) - low, 1)
            scale[leaf.columns], shift[leaf.columns] = 1 / width, -low / width
    if (scale == 1).all() and not shift.any():
        return None, shift
    return scale, shift


def _place_shape(space: Space, columns: slice) -> tuple[int, ...]:
    """The shape in which a leaf of the vector is shown: its own, or one row of indicators."""
    if isinstance(space, spaces.Box | spaces.MultiBinary) and space.shape:
        return tuple(space.shape)
    return (columns.stop - columns.start,)


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
