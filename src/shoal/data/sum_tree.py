"""A sum tree: numbers that can be drawn in proportion to their size, many at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

FANOUT = 64
"""Children of a node. A wide tree is shallow: a batch is found or changed in two to four NumPy calls per level."""


class SumTree:
    """Weights at the leaves, and in every node above them the sum of its children.

    A node is always summed anew from its children, so all nodes follow from the leaves to the last bit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._levels: list[Numbers] = []  # leaves first, each `[nodes, FANOUT]`; the last has one row
        nodes = size
        while not self._levels or nodes > 1:
            nodes = -(-nodes // FANOUT)
            self._levels.append(np.zeros((nodes, FANOUT)))
        self._leaves = self._levels[0].reshape(-1)

    @property
    def leaves(self) -> Numbers:
        """Every weight `[size]`, as a view that is only to be read."""
        return self._leaves[: self.size]

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum())

    def put(self, places: Integers, weights: Numbers | float) -> None:
        """Change the weights at `places` `[B]`; of a place that is listed twice, the later one counts."""
        self._leaves[places] = weights
        for below, above in zip(self._levels[:-1], self._levels[1:], strict=True):
            places = places // FANOUT
            above.reshape(-1)[places] = below[places].sum(axis=1)

    def find(self, masses: Numbers) -> Integers:
        """The leaf `[B]` at which the running sum of all weights passes each of `masses` `[B]`, 0 <= mass < total.

        It never is a leaf of weight 0, however masses and sums are rounded.
        """
        nodes = np.zeros(len(masses), np.int64)
        rows = np.arange(len(masses))
        for level in reversed(self._levels):
            sums = np.cumsum(level[nodes], axis=1)
            masses = np.minimum(masses, np.nextafter(sums[:, -1], 0))
            child = np.count_nonzero(sums <= masses[:, None], axis=1)
            masses = masses - np.where(child > 0, sums[rows, child - 1], 0.0)
            nodes = nodes * FANOUT + child
        return nodes
