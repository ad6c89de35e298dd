"""Fragments from environments that step at their own pace: whoever is ready gets its next action.

The policy stands still within a fragment, and every environment has its own stream of noise, so what an environment
does is independent of when the others are ready. Networks are always given all N rows, of which those that are ready
are used: then a row's numbers do not depend on who else is ready (BLAS rounds by the shape of a matrix), and the batch
is that of lockstep, bit for bit. A fragment takes as long as the slowest environment's own steps, not as long as the
sum of each step's slowest.

With a quorum (`straggler_quorum`) a fragment does not wait for the slowest either. Who is late gives the steps that it
has; the step that it is in belongs to no batch, because the policy that chose its action is gone when it ends. So every
batch holds actions of one policy alone. What is sampled then depends on time.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Sample
from shoal.data.state import State
from shoal.envs.isolated import IsolatedVector
from shoal.models.policy import Policy
from shoal.sampling.own_pace import OwnPaceFragment, OwnPaceSampler

PATIENCE = 2.0  # times what the policy takes to act
MOST_PATIENCE_S = 0.02


class ReadyFirstSampler(OwnPaceSampler):
    """A sampler of environments in processes of their own, which waits for no more of them than it must."""

    vector: IsolatedVector

    def __init__(
        self, policy: Policy, vector: IsolatedVector, seed: int, first_index: int = 0, quorum: float | None = None
    ) -> None:
        super().__init__(policy, vector, seed, first_index)
        self._quorum = quorum
        self._late: dict[int, NDArray[Any]] = {}  # rows in a step that an earlier fragment began, with its action

    def sample(self, steps: int, explore: bool = True, complete_episodes: bool = False) -> Sample:
        """See `Sampler`."""
        start = perf_counter()
        self.vector.begin_fragment(self._late)
        noise = self.draw_noise(steps) if explore else None
        fragment = OwnPaceFragment(self.policy, self._begin(steps), self._current, noise)
        self._fragment = fragment
        env_time_s = 0.0
        ready = self._begin_with_late(fragment)
        while fragment.is_stepping.any():
            acting_since = perf_counter()
            if len(ready):
                actions = self._act_for(ready, fragment)
                self.vector.send(ready.tolist(), actions)
            before = perf_counter()
            # What comes in while the policy would act on few is acted on together.
            patience_s = min(PATIENCE * (before - acting_since), MOST_PATIENCE_S)
            rows = np.array(sorted(self.vector.wait(patience_s)), np.int64)
            env_time_s += perf_counter() - before
            caught_up = self._take_in_late(rows, fragment)
            if len(caught_up):
                rows = np.setdiff1d(rows, caught_up)
            self._take_in(rows, fragment)
            ready = fragment.rest_where_done(rows, steps, complete_episodes)
            if complete_episodes:
                self._go_on(ready, fragment, steps)
            if len(caught_up):
                ready = np.union1d(ready, caught_up)
            if self._quorum is not None and fragment.has_quorum(steps, self._quorum):
                self._cut_late(ready, fragment)
        fragment.fill_up()
        return self._finish(fragment, env_time_s, start)

    def set_state(self, state: State, replay: bool = True) -> int:
        """See `Sampler`."""
        self._late = {}
        return super().set_state(state, replay)

    def _begin_with_late(self, fragment: OwnPaceFragment) -> NDArray[np.int64]:
        """The rows that may act at once: all but those that are still in a step of an earlier fragment."""
        for row, action in self._late.items():
            fragment.buffers.actions[0, row] = action  # for the incident, if the step should fail
        ended = [row for row in self._late if not self.vector.is_busy(row)]
        self._take_in_late(np.array(ended, np.int64), fragment)
        return np.setdiff1d(np.arange(self.num_envs), np.array(list(self._late), np.int64))

    def _take_in_late(self, rows: NDArray[np.int64], fragment: OwnPaceFragment) -> NDArray[np.int64]:
        """Of these rows, those that were late; they go on from where their step has led, which is part of no batch."""
        late = np.array([row for row in rows.tolist() if row in self._late], np.int64)
        if not len(late):
            return late
        if self.vector.incidents:
            self._add_actions_to_incidents(fragment)
        shared = self.vector.rows
        actions = np.zeros_like(fragment.buffers.actions[0])
        for row in late.tolist():
            actions[row] = self._late.pop(row)
            history = self._histories[row]
            if shared.seeded[row]:
                self._histories[row], self._history_steps[row] = [], 0
            elif history is not None:
                history.append(actions[row : row + 1].copy())
                self._history_steps[row] += 1
        if self.recurrent is not None:
            self.recurrent.catch_up(actions, shared, late)
        fragment.begin_again(late, shared.obs)
        return late

    def _cut_late(self, ready: NDArray[np.int64], fragment: OwnPaceFragment) -> None:
        """End the fragment without those that are late; the step that they are in is theirs to finish."""
        for row in fragment.cut_where_late().tolist():
            if row in ready or row in self._late:
                continue
            taken = int(fragment.times[row])
            self._late[row] = fragment.buffers.actions[taken, row].copy()
            if self.recurrent is not None:
                self.recurrent.take_back(taken, row)

    def _go_on(self, rows: NDArray[np.int64], fragment: OwnPaceFragment, steps: int) -> None:
        """Noise and arrays for rows whose episodes go on past the fragment's length."""
        times = fragment.times[rows]
        if fragment.noise is not None:
            for row in rows[(times >= steps) & (times % steps == 0)].tolist():
                alone = np.zeros(self.num_envs, bool)
                alone[row] = True
                fragment.noise[:, row] = self.draw_noise(steps, alone)[:, row]
        fragment.grow_for(rows)
