"""From stored observations to what a network reads: one-hot for choices, the running filter for measurements."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.data.filters import MeanStdFilter
from shoal.envs.spaces import ObsSpec, Space
from shoal.models.network import Inputs

MOST_ONE_HOT_CHOICES = 1024


class Encoder:
    """Encodes observations: their vector part, and images of wide integers; other images pass through untouched.

    - A discrete number with n values becomes n indicators (above 1024 values: its binary digits); a binary one stays.
    - Integers of a bounded Box (a RAM dump, a 16-bit image) are scaled to [0, 1]; the network itself scales bytes.
    - Floats stay as they are, or pass the observation filter where there is one.
    """

    def __init__(self, spec: ObsSpec, observation_filter: MeanStdFilter | None = None) -> None:
        self.spec = spec
        self.filter = observation_filter
        size = spec.vector_size
        self.measured = np.zeros(size, bool)  # which columns the filter applies to
        scale, shift = np.ones(size, np.float32), np.zeros(size, np.float32)
        plain: list[int] = []
        for leaf in spec.leaves:
            columns = leaf.columns
            if columns is None or (leaf.choices is not None and not isinstance(leaf.space, spaces.MultiBinary)):
                continue
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
        for leaf in spec.leaves:
            if leaf.choices is None or leaf.columns is None or isinstance(leaf.space, spaces.MultiBinary):
                continue
            for column, count in enumerate(leaf.choices.tolist(), start=leaf.columns.start):
                self._choices.append((column, count, count if count <= MOST_ONE_HOT_CHOICES else _num_digits(count)))
        self._tables = {n: np.eye(n, dtype=np.float32) for _, n, width in self._choices if width == n}
        self.size = len(plain) + sum(width for _, _, width in self._choices)
        images = [leaf.space for leaf in spec.leaves if leaf.columns is None]
        ranges = [_range(space) for space in images]
        self._image_ranges = ranges if any(span is not None for span in ranges) else []

    def __call__(self, parts: Parts) -> Inputs:
        """Encoded inputs for a batch of observations, each part `[B, ...]`."""
        images = parts[1:] if self.spec.vector_size else parts
        if self._image_ranges:
            images = tuple(
                image if span is None else (image - span[0]) * span[1]
                for image, span in zip(images, self._image_ranges, strict=True)
            )
        return (self.encode(parts[0]), *images) if self.spec.vector_size else images

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

    def measurements(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the filter learns from: the vector part after scaling, before filtering."""
        return raw if self._scale is None else raw * self._scale + self._shift


def _range(image: Space) -> tuple[np.float32, np.float32] | None:
    """Lowest value and inverse width of an image of wide integers; bytes are scaled by the network, floats stay."""
    assert isinstance(image, spaces.Box)
    if image.dtype == np.uint8 or not np.issubdtype(image.dtype or np.float32, np.integer) or not image.is_bounded():
        return None
    low, high = float(image.low.min()), float(image.high.max())
    return np.float32(low), np.float32(1 / max(high - low, 1))


def _num_digits(count: int) -> int:
    """Binary digits that tell `count` values apart."""
    return int(count - 1).bit_length()
