"""Every random stream of a run in one table: no two uses of chance may draw the same numbers.

What a run draws follows from its seed, the stream, and indices such as an environment's. That the number of workers
does not change the result rests on it, and so does every resumed run: the numbers below never change.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

EVALUATION_SHIFT = 1_000_003
GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's step, 2^64 over the golden ratio
MASK = 0xFFFFFFFFFFFFFFFF


class Stream(IntEnum):
    """What chance is used for."""

    WEIGHTS = 0  # the first weights of the network
    ACTIONS = 1  # the actions of one environment, by its index
    MINIBATCHES = 2  # the order of steps in every pass
    SINGLE_ACTIONS = 3  # what `compute_single_action` and `compute_actions` draw
    REPLAY = 4  # the transitions that DQN and SAC learn from
    EPISODES = 5  # what `randomize` draws, by environment, seeding and reset
    TASKS = 6  # what `sample_tasks` of the driver's environment draws, by iteration
    LEARNED_ACTIONS = 7  # the actions at which SAC asks its critics
    CRITICS = 8  # the first weights of SAC's critics
    CANDIDATES = 9  # the parameter vectors that ES, ARS, CEM and CMAES try, by iteration
    OPPONENTS = 15  # whom self-play draws from its pool, by iteration


INDICES = {Stream.ACTIONS: 1, Stream.EPISODES: 3, Stream.TASKS: 1, Stream.CANDIDATES: 1, Stream.OPPONENTS: 1}
"""The number of indices of each stream that has any."""


def words(seed: int, stream: Stream, *indices: int) -> list[int]:
    """The words that NumPy makes a stream from; the first index stands before the stream's number."""
    assert len(indices) == INDICES.get(stream, 0)
    return [seed, *indices[:1], int(stream), *indices[1:]]


def generator(seed: int, stream: Stream, *indices: int) -> np.random.Generator:
    """The generator of a stream, at its beginning."""
    return np.random.default_rng(words(seed, stream, *indices))


def number(seed: int, stream: Stream, kind: type[np.unsignedinteger[Any]]) -> int:
    """One number of the given type, for what makes a stream of its own from it."""
    return int(np.random.SeedSequence(words(seed, stream)).generate_state(1, kind)[0])


def evaluation_seed(seed: int) -> int:
    """The seed of evaluation where none is given: it must not meet the episodes of training."""
    return seed + EVALUATION_SHIFT


def reset_seed(seed: int, env_index: int, count: int) -> int:
    """The seed of an environment's `count`-th seeded reset, of 31 bits, which every simulator takes."""
    x = (seed * GAMMA + env_index * 0xBF58476D1CE4E5B9 + count * 0x94D049BB133111EB) & MASK
    for _ in range(2):
        x = splitmix64((x + GAMMA) & MASK)
    return int(x & 0x7FFFFFFF)


def by_counter(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random 64-bit numbers by counter: no stream to keep in step."""
    return np.asarray(splitmix64((x + np.uint64(1)) * np.uint64(GAMMA)))


def splitmix64(x: Any) -> Any:
    """The output function of SplitMix64 (Steele et al. 2014), of an int or of each number of a uint64 array."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)
