"""Which steps of a batch make up which minibatch: the same ones, however many learners share the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from shoal.data.streams import Stream, by_counter, number
from shoal.parallel.group import Group

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

ENVS = 1 << 62  # counters of the order of environments, far from those of their steps


@dataclass(frozen=True)
class Epoch:
    """One pass over a batch: this learner's rows in order, and where each minibatch begins and ends among them."""

    rows: Integers
    cuts: Integers  # [K + 1]
    sizes: Integers  # [K], of whole minibatches, over all learners

    def __iter__(self) -> Iterator[tuple[slice, int]]:
        """Each minibatch that is not empty: its stretch of `rows`, and its size over all learners."""
        places = zip(self.cuts[:-1].tolist(), self.cuts[1:].tolist(), self.sizes.tolist(), strict=True)
        return ((slice(begin, end), size) for begin, end, size in places if size)

    def normalized(self, x: Array, group: Group) -> Array:
        """Numbers in the order of `rows`, with mean 0 and standard deviation 1 in every minibatch."""
        counts = np.diff(self.cuts)
        sums = np.zeros((2, len(counts)))
        some = counts > 0  # reduceat has no empty stretches
        if len(x):
            sums[0, some] = np.add.reduceat(x, self.cuts[:-1][some], dtype=np.float64)
            sums[1, some] = np.add.reduceat(x * x, self.cuts[:-1][some], dtype=np.float64)
        mean, square = group.sum(sums) / np.maximum(self.sizes, 1)
        deviation = np.sqrt(np.maximum(square - mean * mean, 0))
        scale = 1 / (deviation + 1e-8)
        return np.asarray(
            x * np.repeat(scale.astype(np.float32), counts) - np.repeat((mean * scale).astype(np.float32), counts)
        )


class Minibatches:
    """Cuts `[T, N]` batches into stratified minibatches: each takes as evenly as it can from every environment's time.

    Each environment's time is permuted by itself, and so is the order of environments; the permutations follow from
    seed, pass and environment alone. So a learner that has some of the environments finds its share by itself.

    The sequences of a model with memory stay whole: those that begin in the same `window` steps go together.
    """

    def __init__(self, seed: int, size: int, shuffle: bool = True, window: int = 1) -> None:
        self.size, self.shuffle, self.window = size, shuffle, window
        self.passes = 0  # made so far, over all batches
        self._seed = number(seed, Stream.MINIBATCHES, np.uint64)

    def epochs(
        self,
        valid: NDArray[np.bool_],
        group: Group,
        columns: Integers | None = None,
        starts: Integers | None = None,
    ) -> Iterator[Epoch]:
        """One pass after another over this learner's `[T, N]` share of a batch; without end.

        `columns` says where its environments stand among those of all learners, and `starts` `[T, N]` when the sequence
        of each step began, if there are sequences.
        """
        shares = np.zeros((group.size, 3), np.int64)
        shares[group.rank] = *valid.shape, np.count_nonzero(valid)
        shares = group.sum(shares)
        steps, num_envs, num_valid = int(shares[:, 0].max()), int(shares[:, 1].sum()), int(shares[:, 2].sum())
        columns = np.arange(num_envs) if columns is None else columns
        if len(valid) < steps:
            valid = np.concatenate([valid, np.zeros((steps - len(valid), valid.shape[1]), bool)])
        rows_valid = None if num_valid == steps * num_envs else valid.reshape(-1)
        count = ceil(num_valid / self.size)
        windows = ceil(steps / self.window)
        bounds = np.round(np.linspace(0, windows * num_envs, count + 1)).astype(np.int64)
        while True:
            rows, places = self._ordered(windows, num_envs, columns)
            cuts = np.searchsorted(places, bounds)
            sizes = np.diff(bounds)
            if starts is not None:
                rows, cuts = _steps_of(rows, cuts, starts // self.window, valid)
                sizes = group.sum(np.diff(cuts))
            elif rows_valid is not None:
                kept = rows_valid[rows]
                cuts = np.concatenate([[0], np.cumsum(kept)])[cuts]
                rows = rows[kept]
                sizes = group.sum(np.diff(cuts))
            self.passes += 1
            yield Epoch(rows, cuts, sizes)

    def _ordered(self, steps: int, num_envs: int, columns: Integers) -> tuple[Integers, Integers]:
        """Rows of the environments in `columns`, and the place of each in the order over all; steps may be windows."""
        mine = len(columns)
        envs, at = np.arange(mine), columns
        times = np.broadcast_to(np.arange(steps)[:, None], (steps, mine))
        if self.shuffle:
            key = by_counter(np.array([(self._seed + self.passes) % 2**64], np.uint64))
            of_envs: NDArray[np.uint64] = np.arange(ENVS, ENVS + num_envs, dtype=np.uint64)
            at = np.argsort(np.argsort(by_counter(key + of_envs)))[at]
            envs = np.argsort(at)
            at = at[envs]
            counters = (columns[:, None] * steps + np.arange(steps)).astype(np.uint64)
            times = np.argsort(by_counter(key + counters), axis=1).T[:, envs]
        places = (np.arange(steps)[:, None] * num_envs + at).reshape(-1)
        return (times * mine + envs).reshape(-1), places


def _steps_of(
    windows: Integers, cuts: Integers, window_of: Integers, valid: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """The rows of the steps that belong to windows `[W]`, in the order of those, and the cuts among them.

    A window is known by its row, as a step is; `window_of` `[T, N]` says when it is that each step belongs to.
    """
    ranks = np.argsort(windows)
    steps, num_envs = window_of.shape
    rows = np.flatnonzero(valid[:steps])
    rank = ranks[(window_of * num_envs + np.arange(num_envs)).reshape(-1)[rows]]
    order = np.argsort(rank, kind="stable")  # in a window, time goes on as it did
    return rows[order], np.searchsorted(rank[order], cuts)
