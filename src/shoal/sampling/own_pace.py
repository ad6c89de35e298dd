"""Rows that step at their own pace: a fragment in which each is at a step of its own, and acting for some of them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Parts
from shoal.envs.shared_rows import SharedRows
from shoal.envs.vector import Vector
from shoal.errors import EnvError
from shoal.models.policy import Policy
from shoal.sampling.fragment import LONGEST_EPISODE, Buffers, Fragment
from shoal.sampling.recurrent_state import OwnPaceActor
from shoal.sampling.sampler import Sampler


class OwnPaceVector(Vector, Protocol):
    """A vector whose rows may be given actions at different times."""

    rows: Any  # what the last step of each row gave: obs, rewards, terminated, truncated, valid, failed, seeded

    def final(self, row: int) -> Parts:
        """The last observation of the episode that a row's step has truncated."""


class OwnPaceSampler(Sampler):
    """What samplers of rows at different steps have in common."""

    vector: OwnPaceVector
    recurrent: OwnPaceActor | None

    def __init__(self, policy: Policy, vector: OwnPaceVector, seed: int, first_index: int = 0) -> None:
        super().__init__(policy, vector, seed, first_index)
        if policy.recurrence is not None:
            self.recurrent = OwnPaceActor(policy.recurrence, self.num_envs)

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
        if policy.num_kept_outputs:
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

    def add_rows(self, rows: NDArray[np.int64], vector: OwnPaceVector) -> None:
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

    def add_stretch(self, row: int, count: int, shared: SharedRows) -> None:
        """Count so many plain steps of a row, whose first action is here already, and the action of the next one."""
        buffers, begin = self.buffers, int(self.times[row])
        end = begin + count
        for part, passed in zip(buffers.obs, shared.passed, strict=True):
            part[begin + 1 : end + 1, row] = passed[row, :count]
        buffers.rewards[begin:end, row] = shared.passed_rewards[row, :count]
        buffers.terminated[begin:end, row] = shared.passed_terminated[row, :count]
        buffers.truncated[begin:end, row] = False
        buffers.valid[begin:end, row] = True
        buffers.actions[begin + 1 : end + 1, row] = shared.chosen[row, 1 : count + 1]
        buffers.dist_inputs[begin + 1 : end + 1, row] = shared.outputs[row, 1 : count + 1]
        seeded = np.flatnonzero(shared.passed_seeded[row, :count])
        if len(seeded):
            self.seeded_at[row] = begin + int(seeded[-1]) + 1
        self.times[row] = end

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
        """Let the next step of these rows begin with these observations, and not with those after their last one."""
        times = self.times[rows]
        for part, current, new in zip(self.buffers.obs, self.current, obs, strict=True):
            current[rows] = new[rows]
            part[times, rows] = new[rows]

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
