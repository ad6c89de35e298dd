"""What a network takes of a batch: single steps, or with memory whole sequences of them.

Steps are known by their rows `t * N + n`. A batch of both kinds is asked in the same way, so algorithms need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Batch
from shoal.models.network import Inputs
from shoal.models.policy import Policy

Integers = NDArray[np.int64]

CHUNK_ROWS, CHUNK_BYTES = 1024, 1 << 20  # the most of one forward pass where no derivative is wanted
GATHERED_BYTES = 8 << 20  # up to here a pass puts its inputs in order at once; larger ones by minibatch


class StepInputs:
    """What a network without memory takes: steps in any order and number."""

    starts: Integers | None = None  # of sequences

    def __init__(self, parts: Inputs, order: slice | Integers = slice(None)) -> None:
        self._parts = parts
        self.order = order  # of the steps in `chunks`

    def only(self, chosen: NDArray[np.bool_]) -> StepInputs:
        """The chosen steps of all; the same if those are all."""
        if chosen.all():
            return self
        return StepInputs(tuple(part[chosen] for part in self._parts), np.flatnonzero(chosen))

    def chunks(self, rows: int = CHUNK_ROWS, size: int = CHUNK_BYTES) -> Iterator[Inputs]:
        """All steps in order, at most `rows` and about `size` bytes at a time: few enough for cache and memory."""
        step = _most_rows(self._parts, rows, size)
        for begin in range(0, len(self._parts[0]), step):
            yield tuple(part[begin : begin + step] for part in self._parts)

    def take(self, rows: Integers) -> Inputs:
        """The steps in these rows."""
        return tuple(part.take(rows, axis=0) for part in self._parts)

    def ordered(self, rows: Integers) -> Callable[[slice], Inputs]:
        """What gives the steps in a stretch of these rows."""
        if _num_bytes(self._parts) > GATHERED_BYTES:
            return lambda stretch: self.take(rows[stretch])
        parts = self.take(rows)
        return lambda stretch: tuple(part[stretch] for part in parts)


class SequenceInputs:
    """What a network with memory takes: the steps of whole sequences, each from the state in which it began.

    A sequence begins with each episode, and wherever a state was recorded (see `RecurrentRecord`).
    """

    def __init__(self, parts: Inputs, states: Inputs, state_at: Integers, starts: Integers, order: Integers) -> None:
        self._parts = parts
        self._states = states  # each [Z + 1, ...], the initial one last
        self._state_at = state_at  # [T * N], which of them a step begins a sequence with; -1: it goes on in one
        self.starts = starts  # [T, N], when each step's sequence began
        self.order = order  # of the steps in `chunks`: by environment and time, without what is no transition

    @classmethod
    def from_batch(cls, parts: Inputs, batch: Batch, initial_state: Inputs) -> SequenceInputs:
        """The sequences of a batch, whose encoded observations are `parts`."""
        assert batch.carried is not None
        carried, (steps, num_envs) = batch.carried, batch.valid.shape
        state_at = np.full((steps, num_envs), -1)
        state_at[1:][(batch.terminated | batch.truncated)[:-1]] = len(carried.states_at)
        state_at[tuple(carried.states_at.T)] = np.arange(len(carried.states_at))
        times = np.arange(steps)[:, None]
        starts = np.maximum.accumulate(np.where(state_at >= 0, times, 0), axis=0)
        order = np.arange(steps * num_envs).reshape(steps, num_envs).T[batch.valid.T]
        previous = carried.previous.reshape(steps * num_envs, carried.previous.shape[2])
        states = []
        for recorded, initial in zip(carried.states, initial_state, strict=True):
            states.append(np.concatenate([recorded, initial[None]]))
        return cls((*parts, previous), tuple(states), state_at.reshape(-1), starts, order)

    def only(self, chosen: NDArray[np.bool_]) -> SequenceInputs:
        """The chosen steps, which must be those of whole sequences."""
        order = self.order[chosen[self.order]]
        return SequenceInputs(self._parts, self._states, self._state_at, self.starts, order)

    def chunks(self, rows: int = CHUNK_ROWS, size: int = CHUNK_BYTES) -> Iterator[Inputs]:
        """All sequences in order, about `rows` steps and `size` bytes at a time."""
        step = _most_rows(self._parts, rows, size)
        total = len(self.order)
        begins = np.flatnonzero(self._state_at[self.order] >= 0)
        places = np.searchsorted(begins, np.arange(0, total, step))
        cuts = np.unique([*begins[places[places < len(begins)]], total])
        for begin, end in pairwise(cuts.tolist()):
            yield self.take(self.order[begin:end])

    def take(self, rows: Integers) -> Inputs:
        """The steps in these rows, which must be those of whole sequences one after another."""
        states = self._state_at[rows]
        begins = np.flatnonzero(states >= 0)
        inputs = tuple(part.take(rows, axis=0) for part in self._parts)
        first = tuple(state.take(states[begins], axis=0) for state in self._states)
        return (*inputs, *first, np.diff(begins, append=len(rows)))

    def ordered(self, rows: Integers) -> Callable[[slice], Inputs]:
        """What gives the sequences in a stretch of these rows."""
        return lambda stretch: self.take(rows[stretch])


BatchInputs = StepInputs | SequenceInputs


def batch_inputs(policy: Policy, batch: Batch) -> BatchInputs:
    """The batch as the policy's network takes it."""
    rows = batch.valid.size
    parts = policy.encoder(tuple(part.reshape(rows, *part.shape[2:]) for part in batch.obs))
    if policy.recurrence is None:
        return StepInputs(parts)
    return SequenceInputs.from_batch(parts, batch, policy.recurrence.initial_state)


def final_inputs(policy: Policy, batch: Batch) -> StepInputs:
    """The batch's final observations as the policy's network takes them."""
    parts = policy.encoder(batch.final_obs)
    if batch.carried is not None:  # each is a sequence of its own
        parts = (*parts, *batch.carried.final, np.ones(len(batch.final_at), np.int64))
    return StepInputs(parts)


def _most_rows(parts: Inputs, rows: int, size: int) -> int:
    rows_of_size = size * len(parts[0]) // max(1, _num_bytes(parts))
    return max(1, min(rows, rows_of_size))


def _num_bytes(parts: Inputs) -> int:
    return sum(part.nbytes for part in parts)
