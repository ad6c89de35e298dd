"""Learners that share a batch, as threads of one process."""

from __future__ import annotations

from threading import Barrier, BrokenBarrierError, Thread

import numpy as np
import pytest


class Shared:
    """What the threads of one group have in common."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size)
        self.given: list = [None] * size


class Threads:
    """A group whose members are threads."""

    def __init__(self, shared: Shared, rank: int) -> None:
        self.rank, self.size, self._shared = rank, shared.size, shared

    def sum(self, x):
        self._shared.given[self.rank] = np.array(x)
        self._shared.barrier.wait(100)
        total = sum(self._shared.given[1:], self._shared.given[0].copy())
        self._shared.barrier.wait(100)
        return total

    def mean(self, x):
        return self.sum(x) / self.size

    def broadcast(self, x):
        return self.sum(x if self.rank == 0 else np.zeros_like(x))


def run_in_threads(work, shares: list) -> list:
    """`work(group, share)` for every share at once."""
    shared = Shared(len(shares))
    results: list = [None] * len(shares)
    errors: list = []

    def one(rank: int) -> None:
        try:
            results[rank] = work(Threads(shared, rank), shares[rank])
        except BrokenBarrierError:
            pass  # another one has failed
        except Exception as error:
            errors.append(error)
            shared.barrier.abort()

    threads = [Thread(target=one, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    if errors:
        raise errors[0]
    return results


@pytest.fixture
def in_threads():
    return run_in_threads
