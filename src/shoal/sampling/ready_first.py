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

from shoal.data.batch import Array, Parts, Sample
from shoal.data.state import State
from shoal.envs.isolated import IsolatedVector
from shoal.errors import EnvError
from shoal.models.policy import Policy
from shoal.sampling.fragment import LONGEST_EPISODE, Buffers, Fragment
from shoal.sampling.recurrent_state import OwnPaceActor
from shoal.sampling.sampler import Sampler

PATIENCE = 2.0  # times what the policy takes to act
MOST_PATIENCE_S = 0.02


class ReadyFirstSampler(Sampler):
    """A sampler of environments in processes of their own, which waits for no more of them than it must."""

    vector: IsolatedVector
    recurrent: OwnPaceActor | None

    def __init__(
        self, policy: Policy, vector: IsolatedVector, seed: int, first_index: int = 0, quorum: float | None = None
    ) -> None:
        super().__init__(policy, vector, seed, first_index)
        self._quorum = quorum
        self._late: dict[int, NDArray[Any]] = {}  # rows in a step that an earlier fragment began, with its action
        if policy.recurrence is not None:
            self.recurrent = OwnPaceActor(policy.recurrence, self.num_envs)

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

    def _act_for(self, rows: NDArray[np.int64], fragment: OwnPaceFragment) -> NDArray[Any]:
        """The actions `[N, A]` of which those of `rows` are meant, written down with the network's outputs."""
        policy, buffers = self.policy, fragment.buffers
        encoded = policy.encoder(fragment.current)
        at, chosen = fragment.places(rows)
        if policy.candidates is not None:
            outputs = self._outputs_of_candidates(encoded)
        elif policy.act_and_value is not None and buffers.values is not None:
            outputs, values = policy.act_and_value(encoded)
            buffers.values[at] = values[chosen]
        elif self.recurrent is None:
            outputs = policy.network.act(encoded)
        else:
            outputs = self.recurrent.act_for(encoded, rows, fragment.times[rows])
        if fragment.noise is None:
            actions = policy.distribution.mode(outputs)
        else:
            actions = policy.distribution.sample(outputs, fragment.next_noise())
        if policy.is_stochastic:
            buffers.dist_inputs[at] = outputs[chosen]
        buffers.actions[at] = actions[chosen]
        return actions

    def _take_in(self, rows: NDArray[np.int64], fragment: OwnPaceFragment) -> None:
        """Write down what came of the steps of these rows."""
        times = fragment.times[rows]
        if self.recurrent is not None:
            actions = np.zeros_like(fragment.buffers.actions[0])
            actions[rows] = fragment.buffers.actions[times, rows]
            self.recurrent.follow_for(actions, self.vector.rows, rows, times)
        if self.vector.incidents:
            self._add_actions_to_incidents(fragment)
        fragment.add_rows(rows, self.vector)
        self.steps_sampled += len(rows)

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


class OwnPaceFragment(Fragment):
    """A fragment in which every environment is at a step of its own."""

    def __init__(self, policy: Policy, buffers: Buffers, first: Parts, noise: Array | None) -> None:
        super().__init__(policy, buffers, first, noise)
        num_envs = buffers.rewards.shape[1]
        self.current: Parts = tuple(part.copy() for part in first)  # where each environment's next action is taken
        self.times: NDArray[np.int64] = np.zeros(num_envs, np.int64)  # steps of each
        self._everyone = np.arange(num_envs)
        self.is_stepping: NDArray[np.bool_] = np.ones(num_envs, bool)

    def num_actions(self, row: int) -> int:
        """See `Fragment`."""
        return int(self.times[row] + self.is_stepping[row])

    def places(self, rows: NDArray[np.int64], ahead: int = 0) -> tuple[Any, Any]:
        """Where in arrays `[T, N]` the next step of these rows is, or one `ahead` of it; and where in arrays `[N]`.

        Where all environments are at the same step these are whole rows, which NumPy copies more quickly.
        """
        first = int(self.times[0])
        if len(rows) == len(self.times) and (self.times == first).all():
            return first + ahead, slice(None)
        return (self.times[rows] + ahead, rows), rows

    def next_noise(self) -> Array:
        """The noise `[N, M]` of every environment's next action."""
        assert self.noise is not None
        return self.noise[self.times % len(self.noise), self._everyone]

    def add_rows(self, rows: NDArray[np.int64], vector: IsolatedVector) -> None:
        """Count a step of each of these rows, and note what is special about it."""
        buffers, shared = self.buffers, vector.rows
        at, chosen = self.places(rows)
        next_at, _ = self.places(rows, ahead=1)
        for part, current, new in zip(buffers.obs, self.current, shared.obs, strict=True):
            current[chosen] = new[chosen]
            part[next_at] = current[chosen]
        buffers.rewards[at] = shared.rewards[chosen]
        buffers.terminated[at] = shared.terminated[chosen]
        buffers.truncated[at] = shared.truncated[chosen]
        buffers.valid[at] = shared.valid[chosen]
        for row in rows[shared.truncated[rows]].tolist():
            self.finals.append((int(self.times[row]), row, vector.final(row)))
        for row in rows[shared.failed[rows]].tolist():
            self.cut_before_failure(int(self.times[row]), row)
        for row in rows[shared.seeded[rows]].tolist():
            self.seeded_at[row] = int(self.times[row]) + 1
        self.times[rows] += 1

    def rest_where_done(self, rows: NDArray[np.int64], steps: int, complete_episodes: bool) -> NDArray[np.int64]:
        """Let those of `rows` rest that have taken their steps; returns the others."""
        buffers, last = self.buffers, self.times[rows] - 1
        is_done: NDArray[np.bool_] = self.times[rows] >= steps
        if complete_episodes:
            is_done &= buffers.valid[last, rows]
            is_done &= buffers.terminated[last, rows] | buffers.truncated[last, rows]
        self.is_stepping[rows[is_done]] = False
        return rows[~is_done]

    def grow_for(self, rows: NDArray[np.int64]) -> None:
        """Make the buffers longer if one of these rows has come to their end."""
        longest = int(self.times[rows].max(initial=0))
        if longest > LONGEST_EPISODE:
            raise EnvError(
                f"an episode did not end within {longest} steps, and batch_mode is complete_episodes; set `horizon`"
            )
        if longest >= self.buffers.steps:
            self.buffers = self.buffers.grown(self._policy, 2 * self.buffers.steps)

    def has_quorum(self, steps: int, share: float) -> bool:
        """Whether somebody would have to wait, and this share of all steps is there."""
        someone_waits = not self.is_stepping.all()
        return someone_waits and bool(self.times.sum() >= share * steps * len(self.times))

    def cut_where_late(self) -> NDArray[np.int64]:
        """End the rows that still step with the steps that they have; returns these rows."""
        late = np.flatnonzero(self.is_stepping)
        self.cut = np.zeros(len(self.times), bool)
        for row in late.tolist():
            taken = int(self.times[row])
            self.cut[row] = self.truncate_before(taken, row) or taken == 0
        self.is_stepping[late] = False
        return late

    def begin_again(self, rows: NDArray[np.int64], obs: Parts) -> None:
        """Let rows that have taken no step yet begin with these observations."""
        for part, current, new in zip(self.buffers.obs, self.current, obs, strict=True):
            current[rows] = new[rows]
            part[0, rows] = new[rows]

    def fill_up(self) -> None:
        """Fill rows that ended before the longest with steps that are no transitions."""
        b, steps = self.buffers, int(self.times.max())
        for row in np.flatnonzero(self.times < steps).tolist():
            end = int(self.times[row])
            b.rewards[end:steps, row] = 0
            b.actions[end:steps, row] = 0
            b.dist_inputs[end:steps, row] = 0
            if b.values is not None:
                b.values[end:steps, row] = 0
            b.terminated[end:steps, row] = True
            b.truncated[end:steps, row] = False
            b.valid[end:steps, row] = False
            for part in b.obs:
                part[end : steps + 1, row] = part[end, row]
        self.taken = steps
