"""Fragments from environments that step at their own pace: whoever is ready gets its next action.

The policy stands still within a fragment, and every environment has its own stream of noise, so what an environment
does is independent of when the others are ready. Networks are always given all N rows, of which those that are ready
are used: then a row's numbers do not depend on who else is ready (BLAS rounds by the shape of a matrix), and the batch
is that of lockstep, bit for bit. A fragment takes as long as the slowest environment's own steps, not as long as the
sum of each step's slowest.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Parts, Sample
from shoal.envs.isolated import IsolatedVector
from shoal.errors import EnvError
from shoal.sampling.recurrent_state import OwnPaceCarrier

if TYPE_CHECKING:
    from shoal.sampling.sampler import Buffers, Sampler

PATIENCE = 2.0  # times what the policy takes to act
MOST_PATIENCE_S = 0.02


def sample_ready_first(
    sampler: Sampler, vector: IsolatedVector, steps: int, explore: bool, complete_episodes: bool
) -> Sample:
    """See `Sampler.sample`."""
    from shoal.sampling.sampler import LONGEST_EPISODE

    start = perf_counter()
    vector.begin_fragment()
    fragment = Fragment(sampler, vector, steps, explore)
    waiting = 0.0
    ready = np.arange(sampler.num_envs)
    while True:
        acted = perf_counter()
        if len(ready):
            fragment.act(ready)
        before = perf_counter()
        # What comes in while the policy would act on few is acted on together.
        rows = np.array(sorted(vector.wait(min(PATIENCE * (before - acted), MOST_PATIENCE_S))))
        waiting += perf_counter() - before
        fragment.take(rows)
        going = fragment.goes_on(rows, complete_episodes)
        ready = rows[going]
        fragment.active[rows[~going]] = False
        if not fragment.active.any():
            break
        if len(ready) and fragment.times[ready].max() > LONGEST_EPISODE:
            raise EnvError(
                f"an episode did not end within {LONGEST_EPISODE} steps, and batch_mode is complete_episodes; "
                "set `horizon`"
            )
    return fragment.sample(start, waiting)


class Fragment:
    """A fragment in the making; every row has its own time."""

    def __init__(self, sampler: Sampler, vector: IsolatedVector, steps: int, explore: bool) -> None:
        self._sampler, self._vector, self._steps = sampler, vector, steps
        self._buffers: Buffers = sampler.begin_fragment(steps)
        self._noise = sampler.draw_noise(steps) if explore else None
        self._finals: list[tuple[int, int, Parts]] = []
        self._seeded_at: dict[int, int] = {}
        self._noted = 0  # incidents that have their actions
        self._now: Parts = tuple(part[0].copy() for part in self._buffers.obs)
        self.times: NDArray[np.int64] = np.zeros(sampler.num_envs, np.int64)
        self._everyone = np.arange(sampler.num_envs)
        self.active: NDArray[np.bool_] = np.ones(sampler.num_envs, bool)
        sampler.note_last_actions = self._note_actions

    def act(self, rows: NDArray[np.int64]) -> None:
        """Choose the actions of these rows, and send them."""
        policy, carrier, buffers = self._sampler.policy, self._sampler.carrier, self._buffers
        times = self.times[rows]
        together = self._time_of_all(rows)
        encoded = policy.encoder(self._now)
        if carrier is None:
            inputs = policy.network.act(encoded)
        else:
            assert isinstance(carrier, OwnPaceCarrier)
            inputs = carrier.act_for(encoded, rows, times)
        if self._noise is None:
            actions = policy.distribution.mode(inputs)
        elif together is None:
            actions = policy.distribution.sample(inputs, self._noise[self.times % self._steps, self._everyone])
        else:
            actions = policy.distribution.sample(inputs, self._noise[together % self._steps])
        if together is None:
            if policy.is_stochastic:
                buffers.dist_inputs[times, rows] = inputs[rows]
            buffers.actions[times, rows] = actions[rows]
        else:
            if policy.is_stochastic:
                buffers.dist_inputs[together] = inputs
            buffers.actions[together] = actions
        self._vector.send(rows.tolist(), actions)

    def take(self, rows: NDArray[np.int64]) -> None:
        """Write down what came of the steps of these rows."""
        buffers, shared, times = self._buffers, self._vector.rows, self.times[rows]
        together = self._time_of_all(rows)
        places: Any = (times, rows) if together is None else together
        following: Any = (times + 1, rows) if together is None else together + 1
        chosen: Any = rows if together is None else slice(None)
        for part, now, theirs in zip(buffers.obs, self._now, shared.obs, strict=True):
            now[chosen] = theirs[chosen]
            part[following] = now[chosen]
        buffers.rewards[places] = shared.rewards[chosen]
        buffers.terminated[places] = shared.terminated[chosen]
        buffers.truncated[places] = shared.truncated[chosen]
        buffers.valid[places] = shared.valid[chosen]
        for row in rows[shared.truncated[rows]].tolist():
            self._finals.append((int(self.times[row]), row, self._vector.final(row)))
        carrier = self._sampler.carrier
        if carrier is not None:
            assert isinstance(carrier, OwnPaceCarrier)
            actions = np.zeros_like(buffers.actions[0])
            actions[rows] = buffers.actions[times, rows]
            carrier.follow_for(actions, shared, rows, times)
        for row in rows[shared.failed[rows]].tolist():
            self._sampler.cut_before_failure(buffers, int(self.times[row]), row, self._finals)
        if len(self._vector.incidents) > self._noted:
            self._noted = self._note_actions()
        for row in rows[shared.seeded[rows]].tolist():
            self._seeded_at[row] = int(self.times[row]) + 1
        self.times[rows] += 1
        self._sampler.steps_sampled += len(rows)

    def _time_of_all(self, rows: NDArray[np.int64]) -> int | None:
        """The time that all environments are at, if these are all and it is one: whole rows are the quicker way."""
        if len(rows) < len(self.times):
            return None
        first = int(self.times[0])
        return first if (self.times == first).all() else None

    def _note_actions(self) -> int:
        taken = self.times + self.active  # who is active has an action for the step that it is at
        return self._sampler.note_actions(self._noted, self._buffers, taken, self._seeded_at)

    def goes_on(self, rows: NDArray[np.int64], complete_episodes: bool) -> NDArray[np.bool_]:
        """Which of these rows have more steps to take."""
        times = self.times[rows]
        going: NDArray[np.bool_] = times < self._steps
        if complete_episodes:
            buffers, last = self._buffers, times - 1
            ended = (buffers.terminated[last, rows] | buffers.truncated[last, rows]) & buffers.valid[last, rows]
            going |= ~ended
            self._make_room(rows[going])
        return going

    def sample(self, start: float, waiting: float) -> Sample:
        """The finished fragment; rows that ended before the longest are filled with what is no transition."""
        steps = int(self.times.max())
        buffers = self._buffers
        for row in np.flatnonzero(self.times < steps).tolist():
            rest = slice(int(self.times[row]), steps)
            buffers.rewards[rest, row], buffers.truncated[rest, row] = 0, False
            buffers.terminated[rest, row], buffers.valid[rest, row] = True, False
            buffers.actions[rest, row] = 0
            buffers.dist_inputs[rest, row] = 0
            for part in buffers.obs:
                part[rest.start : steps + 1, row] = part[rest.start, row]
        return self._sampler.finish_fragment(
            buffers, steps, self._finals, self._seeded_at, waiting, perf_counter() - start
        )

    def _make_room(self, rows: NDArray[np.int64]) -> None:
        """Noise and arrays for rows whose episodes go on after the fragment's length."""
        for row in rows[(self.times[rows] >= self._steps) & (self.times[rows] % self._steps == 0)].tolist():
            if self._noise is not None:
                alone = np.zeros(len(self.times), bool)
                alone[row] = True
                self._noise[:, row] = self._sampler.draw_noise(self._steps, alone)[:, row]
        if len(rows) and self.times[rows].max() >= self._buffers.steps:
            self._buffers = self._buffers.grown(self._sampler.policy, 2 * self._buffers.steps)
