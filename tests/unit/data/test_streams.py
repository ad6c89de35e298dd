"""The random streams of a run: none meets another, and each begins as it always has."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.data.streams import (
    INDICES,
    Stream,
    by_counter,
    evaluation_seed,
    generator,
    number,
    reset_seed,
    splitmix64,
    words,
)

SOURCE = Path(shoal.__file__).parent
SMALL = (*range(8), 2**31, 2**32 - 1)  # the numbers of streams, where an index might pass for one, and the largest


@pytest.mark.parametrize("seed", [0, 1, 7, 2**32 - 1, 2**32, 2**32 + 5, 2**63 - 1])
def test_no_two_streams_meet(seed: int) -> None:
    """NumPy fills up short lists of words with zeros, so that [7, 3] and [7, 3, 0] are one stream."""
    states: dict[bytes, tuple[Stream, tuple[int, ...]]] = {}
    for stream in Stream:
        for indices in product(SMALL, repeat=INDICES.get(stream, 0)):
            state = np.random.SeedSequence(words(seed, stream, *indices)).generate_state(4, np.uint64).tobytes()
            other = states.setdefault(state, (stream, indices))
            assert other == (stream, indices), f"{stream.name}{indices} is {other[0].name}{other[1]}"


def test_evaluation_meets_no_training() -> None:
    seeds = range(1000)
    assert not {evaluation_seed(seed) for seed in seeds} & set(seeds)


def test_every_stream_begins_as_it_always_has() -> None:
    assert number(7, Stream.WEIGHTS, np.uint32) == 2083679832
    assert number(7, Stream.MINIBATCHES, np.uint64) == 18279110831140952437
    first = {
        (Stream.ACTIONS, 3): 3084496849,
        (Stream.SINGLE_ACTIONS,): 3126384070,
        (Stream.REPLAY,): 2282365616,
        (Stream.EPISODES, 3, 2, 1): 3447067542,
        (Stream.TASKS, 3): 3542997106,
    }
    assert {key: int(generator(7, *key).integers(2**32)) for key in first} == first
    assert evaluation_seed(7) == 1_000_010
    assert (reset_seed(7, 3, 2), reset_seed(2**63 - 1, 10**6, 10**9)) == (1267186498, 1378461480)
    counters = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert by_counter(counters).tolist() == [16294208416658607535, 7960286522194355700, 5196802822362493915, 0]


def test_splitmix_is_the_same_for_numbers_and_arrays() -> None:
    numbers = [0, 1, 12345, 2**63, 2**64 - 1]
    array = splitmix64(np.array(numbers, np.uint64))
    assert array.dtype == np.uint64
    assert array.tolist() == [splitmix64(x) for x in numbers]


def test_indices_must_be_those_of_the_stream() -> None:
    with pytest.raises(AssertionError):
        generator(0, Stream.ACTIONS)


def test_nobody_makes_a_stream_elsewhere() -> None:
    own = SOURCE / "envs" / "faults.py"  # an environment, which draws from the seed of its reset as a user's does
    for path in SOURCE.rglob("*.py"):
        if path.name != "streams.py" and path != own:
            assert not re.search(r"default_rng\(\[|SeedSequence", path.read_text()), path
