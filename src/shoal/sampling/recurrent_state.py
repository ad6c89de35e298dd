"""What a policy with memory carries from step to step of N environments, and the record of it for the learner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Parts, RecurrentRecord
from shoal.data.state import State
from shoal.envs.shared_rows import SharedRows
from shoal.envs.vector import Steps
from shoal.models.network import Inputs
from shoal.models.recurrence import Recurrence


class RecurrentActor:
    """Hands the network its state, and the action and reward before each step; both begin anew with each episode."""

    def __init__(self, recurrence: Recurrence, num_envs: int) -> None:
        self._recurrence = recurrence
        self._now: Parts = recurrence.begin(num_envs)  # what was before, then the state: each [N, ...]
        self._before: Parts = ()  # the same, one step ago
        self._length = np.zeros(num_envs, np.int64)  # of each sequence so far
        self._previous: list[Array] = []
        self._states: dict[tuple[int, int], Parts] = {}
        self._finals: dict[tuple[int, int], Parts] = {}

    def begin_fragment(self) -> None:
        """Forget the record of the last fragment; the episodes go on."""
        self._previous, self._states, self._finals = [], {}, {}
        self._length[:] = self._recurrence.window  # so a new sequence begins

    def act(self, inputs: Inputs) -> Array:
        """The network's outputs `[N, K]` for the fragment's next step."""
        previous, *state = self._now
        for row in np.flatnonzero(self._length == self._recurrence.window).tolist():
            self._states[len(self._previous), row] = _row(tuple(state), row)
            self._length[row] = 0
        self._length += 1
        self._previous.append(previous)
        outputs, after = self._recurrence.step((*inputs, previous), tuple(state))
        # Copies: a model may hand back what it was given, or keep what it hands back.
        self._before, self._now = self._now, (previous, *(np.array(part) for part in after))
        return outputs

    def follow(self, actions: NDArray[np.generic], steps: Steps) -> None:
        """Take in what came of the actions."""
        t = len(self._previous) - 1
        self._now = (self._recurrence.previous(actions, steps.rewards), *self._now[1:])
        for row, _ in steps.finals:
            self._finals[t, row] = _row(self._now, row)
        for row in steps.failed:  # the step before becomes the last one, unless it was that already
            self._finals.setdefault((t - 1, row), _row(self._before, row))
        self.begin(np.flatnonzero(steps.terminated | steps.truncated))

    def begin(self, rows: NDArray[np.int64]) -> None:
        """An episode begins in each of these rows."""
        for part, first in zip(self._now, self._recurrence.begin(len(rows)), strict=True):
            part[rows] = first
        self._length[rows] = 0

    def record(self, final_at: NDArray[np.int64]) -> RecurrentRecord:
        """What was carried into the fragment's steps and into the observations that follow those in `final_at`."""
        finals = [self._finals.get((t, row)) or _row(self._now, row) for t, row in final_at.tolist()]
        return RecurrentRecord(
            previous=np.stack(self._previous),
            states=_stacked(list(self._states.values())),
            states_at=np.array(list(self._states), np.int64),
            final=_stacked(finals) if finals else self._recurrence.begin(0),
        )

    def get_state(self) -> State:
        """What is carried into the next step."""
        return State(arrays={f"carried{k}": part.copy() for k, part in enumerate(self._now)})

    def set_state(self, state: State) -> None:
        """Take over what a saved state carried."""
        for k, part in enumerate(self._now):
            part[:] = state.arrays[f"carried{k}"]


class OwnPaceActor(RecurrentActor):
    """The same for environments that are at different steps of a fragment."""

    def __init__(self, recurrence: Recurrence, num_envs: int) -> None:
        super().__init__(recurrence, num_envs)
        self._before = tuple(part.copy() for part in self._now)
        self._previous_at: dict[tuple[int, int], Array] = {}  # by step and row
        self._late: set[int] = set()  # rows in a step that is part of no fragment

    def begin_fragment(self) -> None:
        """See `RecurrentActor`."""
        super().begin_fragment()
        self._previous_at = {}

    def act_for(self, inputs: Inputs, rows: NDArray[np.int64], times: NDArray[np.int64]) -> Array:
        """The network's outputs `[N, K]`; only `rows` take a step, each at its own time."""
        previous, *state = self._now
        for row, t in zip(rows.tolist(), times.tolist(), strict=True):
            if self._length[row] == self._recurrence.window:
                self._states[t, row] = _row(tuple(state), row)
                self._length[row] = 0
            self._previous_at[t, row] = previous[row].copy()
        self._length[rows] += 1
        # Copies: a model may write into what it is given, and other rows still need theirs.
        outputs, after = self._recurrence.step((*inputs, previous), tuple(part.copy() for part in state))
        for before, now in zip(self._before, self._now, strict=True):
            before[rows] = now[rows]
        for part, new in zip(state, after, strict=True):
            part[rows] = np.asarray(new)[rows]
        return outputs

    def follow_for(
        self, actions: NDArray[np.generic], steps: SharedRows, rows: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Take in what came of the actions of `rows`."""
        self._now[0][rows] = self._recurrence.previous(actions, steps.rewards)[rows]
        for row, t in zip(rows.tolist(), times.tolist(), strict=True):
            if steps.truncated[row]:
                self._finals[t, row] = _row(self._now, row)
            if steps.failed[row]:
                self._finals.setdefault((t - 1, row), _row(self._before, row))
        self.begin(rows[steps.terminated[rows] | steps.truncated[rows]])

    def take_back(self, t: int, row: int) -> None:
        """Step `t` of a row, which has its action already, is part of no fragment."""
        del self._previous_at[t, row]
        self._states.pop((t, row), None)
        self._finals.setdefault((t - 1, row), _row(self._before, row))
        self._late.add(row)

    def catch_up(self, actions: NDArray[np.generic], steps: SharedRows, rows: NDArray[np.int64]) -> None:
        """Take in what came of actions of an earlier fragment."""
        self._now[0][rows] = self._recurrence.previous(actions, steps.rewards)[rows]
        self.begin(rows[steps.terminated[rows] | steps.truncated[rows]])
        self._length[rows] = self._recurrence.window  # a sequence begins with the first step of this fragment
        self._late.difference_update(rows.tolist())

    def get_state(self) -> State:
        """See `RecurrentActor`; who is in the middle of a step takes it again."""
        late = sorted(self._late)
        parts = [part.copy() for part in self._now]
        for part, before in zip(parts, self._before, strict=True):
            part[late] = before[late]
        return State(arrays={f"carried{k}": part for k, part in enumerate(parts)})

    def set_state(self, state: State) -> None:
        """See `RecurrentActor`."""
        self._late.clear()
        super().set_state(state)

    def record(self, final_at: NDArray[np.int64]) -> RecurrentRecord:
        """See `RecurrentActor`."""
        num_steps = max(t for t, _ in self._previous_at) + 1
        shape = (num_steps, len(self._length), self._recurrence.previous.size)
        previous_steps = np.zeros(shape, np.float32)
        for (t, row), previous in self._previous_at.items():
            previous_steps[t, row] = previous
        self._previous = list(previous_steps)
        self._states = dict(sorted(self._states.items()))
        return super().record(final_at)


def _row(parts: Parts, row: int) -> Parts:
    return tuple(part[row].copy() for part in parts)


def _stacked(rows: list[Parts]) -> Parts:
    """Rows of parts as parts of rows."""
    return tuple(np.stack(part) for part in zip(*rows, strict=True))
