"""Fragments from environments that step at their own pace: whoever is ready gets its next action.

The policy stands still within a fragment, and every environment has its own stream of noise, so what an environment
does is independent of when the others are ready. Networks are always given all N rows, of which those that are ready
are used: then a row's numbers do not depend on who else is ready (BLAS rounds by the shape of a matrix), and the batch
is that of lockstep, bit for bit. A fragment takes as long as the slowest environment's own steps, not as long as the
sum of each step's slowest. Quick environments are asked for a stretch of steps at once, in which their own processes
act (`envs/env_process.py`): by the same numbers, so that changes nothing but the time.

With a quorum (`straggler_quorum`) a fragment does not wait for the slowest either. Who is late gives the steps that it
has; the step that it is in belongs to no batch, because the policy that chose its action is gone when it ends. So every
batch holds actions of one policy alone. What is sampled then depends on time.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Incident, Sample
from shoal.data.state import State
from shoal.envs.isolated import IsolatedVector
from shoal.models.policy import Policy
from shoal.models.row_actor import weights_of
from shoal.sampling.own_pace import OwnPaceFragment, OwnPaceSampler

PATIENCE = 2.0  # times what the policy takes to act
MOST_PATIENCE_S = 0.02
FEWEST_STEPS = 16  # of a fragment for which it is worth while to tell all processes the weights


class ReadyFirstSampler(OwnPaceSampler):
    """A sampler of environments in processes of their own, which waits for no more of them than it must."""

    vector: IsolatedVector

    def __init__(
        self, policy: Policy, vector: IsolatedVector, seed: int, first_index: int = 0, quorum: float | None = None
    ) -> None:
        super().__init__(policy, vector, seed, first_index)
        self._quorum = quorum
        self._ends: list[tuple[int, int]] = []  # of episodes: steps of the fragment, and row
        self._late: dict[int, NDArray[Any]] = {}  # rows in a step that an earlier fragment began, with its action

    def sample(self, steps: int, explore: bool = True, complete_episodes: bool = False) -> Sample:
        """See `Sampler`."""
        start = perf_counter()
        self.vector.begin_fragment(self._late)
        self._ends = []
        longest = self._tell_weights(steps, explore, complete_episodes)
        noise = self.draw_noise(steps) if explore else None
        fragment = OwnPaceFragment(self.policy, self._begin(steps), self._current, noise)
        self._fragment = fragment
        env_time_s = 0.0
        ready = self._begin_with_late(fragment)
        while fragment.is_stepping.any():
            acting_since = perf_counter()
            if len(ready):
                actions = self._act_for(ready, fragment)
                stretches = self._allow_stretches(ready, fragment, steps, longest)
                self.vector.send(ready.tolist(), actions, stretches)
            before = perf_counter()
            # What comes in while the policy would act on few is acted on together.
            patience_s = min(PATIENCE * (before - acting_since), MOST_PATIENCE_S) if longest == 1 else 0.0
            rows = np.array(sorted(self.vector.wait(patience_s)), np.int64)
            env_time_s += perf_counter() - before
            caught_up = self._take_in_late(rows, fragment)
            if len(caught_up):
                rows = np.setdiff1d(rows, caught_up)
            self._take_in_stretches(rows, fragment)
            self._take_in(rows, fragment)
            self._note_ends(rows, fragment)
            ready = fragment.rest_where_done(rows, steps, complete_episodes)
            if complete_episodes:
                self._go_on(ready, fragment, steps)
            if len(caught_up):
                ready = np.union1d(ready, caught_up)
            if self._quorum is not None and fragment.has_quorum(steps, self._quorum):
                self._cut_late(ready, fragment)
        fragment.fill_up()
        self._sort_episodes()
        return self.finish(fragment, env_time_s, start)

    def incidents_so_far(self) -> list[Incident]:
        """See `Sampler`."""
        if isinstance(self._fragment, OwnPaceFragment):
            self._take_in_stretches(np.zeros(0, np.int64), self._fragment)
        return super().incidents_so_far()

    def set_state(self, state: State, replay: bool = True) -> int:
        """See `Sampler`."""
        self._late = {}
        return super().set_state(state, replay)

    def _tell_weights(self, steps: int, explore: bool, complete_episodes: bool) -> int:
        """Tell the processes how to act in this fragment; how many steps one may take at once."""
        longest = self.vector.longest_stretch
        if longest < 2 or steps < FEWEST_STEPS or self.policy.candidates is not None:
            return 1
        self.vector.set_weights(weights_of(self.policy), explore, through_ends=not complete_episodes)
        return longest

    def _allow_stretches(
        self, rows: NDArray[np.int64], fragment: OwnPaceFragment, steps: int, longest: int
    ) -> NDArray[np.int64] | int:
        """How many steps each of these rows may take by itself, after the noise for them was written down."""
        if longest == 1:
            return 1
        times = fragment.times[rows]
        room = fragment.buffers.steps - times
        allowed: NDArray[np.int64] = np.minimum(np.minimum(steps - times % steps, room), longest)
        if fragment.noise is not None:
            for row, time, count in zip(rows.tolist(), (times % steps).tolist(), allowed.tolist(), strict=True):
                self.vector.rows.noise[row, 1:count] = fragment.noise[time + 1 : time + count, row]
        return allowed

    def _take_in_stretches(self, rows: NDArray[np.int64], fragment: OwnPaceFragment) -> None:
        """Write down the plain steps that these rows have taken before their last, and those before new incidents."""
        shared = self.vector.rows
        if self.vector.incidents:  # whose rows may not have answered yet: it takes long to start a process again
            new = self.vector.incidents[fragment.num_incidents :]
            rows = np.union1d(rows, np.array([each.env_index - self._indices.start for each in new], np.int64))
        # Two processes may write as one until that is noticed, so the number is read once, and held to what was asked.
        counts = np.minimum(shared.taken[rows], shared.stretch[rows] - 1)
        shared.taken[rows] = 0
        for row, count in zip(rows[counts > 0].tolist(), counts[counts > 0].tolist(), strict=True):
            begin = int(fragment.times[row])
            fragment.add_stretch(row, count, shared)
            self.steps_sampled += count
            for place in np.flatnonzero(shared.passed_lengths[row, :count]).tolist():
                # Before those whose place is not noted yet: of this row, that is a later one.
                self.vector.episodes.insert(len(self._ends), self.vector.episode_passed(row, place))
                self._ends.append((begin + place + 1, row))

    def _note_ends(self, rows: NDArray[np.int64], fragment: OwnPaceFragment) -> None:
        """Note at which step the episodes have ended that are new."""
        for episode in self.vector.episodes[len(self._ends) :]:
            row = episode.env_index - self._indices.start
            has_answered = row in rows  # if not, its process was lost in the reset after the step
            self._ends.append((int(fragment.times[row]) + (not has_answered), row))

    def _sort_episodes(self) -> None:
        """Put the episodes into the order of lockstep: sums over them are rounded by it."""
        episodes = self.vector.episodes
        order = sorted(range(len(self._ends)), key=self._ends.__getitem__)
        episodes[:] = [episodes[place] for place in order]

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
