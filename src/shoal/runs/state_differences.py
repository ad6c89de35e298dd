"""In what two states of a training differ: numbers, environments, the first action that was another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.data.number_text import counted
from shoal.data.state import State

MOST_ENVS = 3


class EnvTrace(NamedTuple):
    """One environment as a checkpoint knows it: how often it was seeded, its actions since, and what it shows now."""

    seeding: int
    actions: NDArray[Any]
    obs: tuple[NDArray[Any], ...]


def differences(there: State, here: State) -> list[str]:
    """A sentence for each kind of difference, the most telling first."""
    return [*_of_envs(there, here), *_of_episodes(there, here), *_of_arrays(there, here)]


def _of_arrays(there: State, here: State) -> Iterator[str]:
    for name, words in (("policy/params", "weights"), ("learner/optimizer.m", "the optimiser's first moments")):
        a, b = there.arrays.get(name), here.arrays.get(name)
        if a is None or b is None:
            continue
        if a.shape != b.shape:
            yield f"{words}: {a.size} numbers there, {b.size} here"
        elif not np.array_equal(a, b):
            far = np.abs(a.astype(np.float64) - b)
            count = np.count_nonzero(far)
            size = f"by at most {far.max():.2g} (the largest is {np.abs(a).max():.2g})"
            yield f"{words}: {count} of {a.size} differ, {size}"


def _of_episodes(there: State, here: State) -> Iterator[str]:
    """Episodes that one has and the other has not: another number of workers tells of the same in another order."""
    a, b = (sorted(tuple(e[:3]) for e in state.values["episodes"]["recent"]) for state in (there, here))
    only_there, only_here = ([e for e in one if e not in other] for one, other in ((a, b), (b, a)))
    if not only_there and not only_here:
        return
    index, reward, length = (only_there or only_here)[0]
    where = "there, and not here" if only_there else "here, and not there"
    yield (
        f"{len(only_there)} of the last {len(a)} episodes are not among the last {len(b)} here: environment {index} "
        f"had a return of {reward:g} in {length} steps {where}"
    )


def _of_envs(there: State, here: State) -> Iterator[str]:
    a, b = env_traces(there), env_traces(here)
    if len(a) != len(b):
        return
    told = 0
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        words = _of_env(one, other)
        if words and told < MOST_ENVS:
            yield f"environment {index}: {words}"
        told += bool(words)
    if told > MOST_ENVS:
        yield f"and {told - MOST_ENVS} more of {len(a)} environments"


def _of_env(one: EnvTrace, other: EnvTrace) -> str | None:
    if one.seeding != other.seeding:
        return f"it was seeded {counted(one.seeding, 'time')} there, {counted(other.seeding, 'time')} here"
    steps = min(len(one.actions), len(other.actions))
    unlike = np.flatnonzero((one.actions[:steps] != other.actions[:steps]).any(axis=1))
    if len(unlike):
        return f"its action {unlike[0] + 1} after its last seed is another"
    if len(one.actions) != len(other.actions):
        return f"{counted(len(one.actions), 'step')} since its last seed there, {len(other.actions)} here"
    if any(not np.array_equal(a, b) for a, b in zip(one.obs, other.obs)):
        return f"the same {steps} actions since its last seed led to another observation: the simulator differs"
    return None


def env_traces(state: State) -> list[EnvTrace]:
    """The environments of all workers in the order of their index; none where a sampler keeps other records."""
    found: list[EnvTrace] = []
    with suppress(KeyError, IndexError, TypeError):
        for worker in state.parts("worker"):
            lengths, seedings = worker.values["history_lengths"], worker.values["vector"]["seedings"]
            at = 0
            for row, seeding in enumerate(seedings):
                count = max(lengths[row], 0)
                obs = tuple(worker.arrays[name][row] for name in sorted(worker.arrays) if name.startswith("current"))
                found.append(EnvTrace(int(seeding), worker.arrays["history"][at : at + count], obs))
                at += count
        return found
    return []
