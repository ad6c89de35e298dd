"""One fragment: the arrays `[T, N]` that sampling writes step by step, and the batch that they become."""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Batch, Parts
from shoal.envs.vector import Steps
from shoal.errors import EnvError
from shoal.models.policy import Policy
from shoal.sampling.recurrent_state import RecurrentActor

LONGEST_EPISODE = 1_000_000


NAMES = ("actions", "dist_inputs", "rewards", "terminated", "truncated", "valid")
"""What buffers always have beside observations."""


class Buffers:
    """Room for T steps of N environments, and one more row for the observations that follow."""

    def __init__(self, policy: Policy, steps: int, num_envs: int) -> None:
        self.steps = steps
        lead = (steps, num_envs)
        # Who learns from no probabilities pays nothing for them.
        num_kept = policy.num_kept_outputs
        self.obs = policy.obs_spec.allocate(steps + 1, num_envs)
        self.actions = np.zeros((*lead, policy.action_spec.size), policy.action_spec.dtype)
        self.dist_inputs = np.zeros((*lead, num_kept), np.float32)
        self.values = np.zeros(lead, np.float32) if policy.act_and_value is not None else None
        self.rewards = np.zeros(lead, np.float32)
        self.terminated = np.zeros(lead, bool)
        self.truncated = np.zeros(lead, bool)
        self.valid = np.ones(lead, bool)

    def part(self, rows: slice) -> Buffers:
        """The columns of some environments: the same memory."""
        own = copy(self)
        own.obs = tuple([part[:, rows] for part in self.obs])
        for name in NAMES:
            setattr(own, name, getattr(self, name)[:, rows])
        own.values = None if self.values is None else self.values[:, rows]
        return own

    def grown(self, policy: Policy, steps: int) -> Buffers:
        """A longer copy, for episodes that do not end where the fragment does."""
        new = Buffers(policy, steps, self.rewards.shape[1])
        for name in NAMES:
            getattr(new, name)[: self.steps] = getattr(self, name)
        if new.values is not None and self.values is not None:
            new.values[: self.steps] = self.values
        for mine, theirs in zip(new.obs, self.obs, strict=True):
            mine[: self.steps + 1] = theirs
        return new


class Fragment:
    """The steps of one call of `sample` so far, and where episodes were cut off or began with a seed among them."""

    def __init__(self, policy: Policy, buffers: Buffers, first: Parts, noise: Array | None) -> None:
        self.buffers = buffers
        self.noise = noise  # [T, N, M], for the actions; None: the most likely ones are taken
        self.taken = 0  # steps
        self.active: NDArray[np.bool_] | None = None  # whose episode goes on past the fragment's length; None: all step
        self.seeded_at: dict[int, int] = {}  # the step at which a row last began an episode with a seed
        self.num_incidents = 0  # failures that have the actions which led to them
        self._policy = policy
        self.finals: list[tuple[int, int, Parts]] = []  # step, row and last observation of truncated episodes
        self.cut: NDArray[np.bool_] | None = None  # [N], who was late; None: nobody
        for part, current in zip(buffers.obs, first, strict=True):
            part[0] = current
        buffers.valid[:] = True

    def num_actions(self, row: int) -> int:  # noqa: ARG002
        """How many actions an environment was given, that of an unfinished step included."""
        return self.taken + 1

    def next_step(self) -> Steps:
        """The rows that the next step is written to."""
        b, t = self.buffers, self.taken
        obs = tuple([part[t + 1] for part in b.obs])
        return Steps(obs, b.rewards[t], b.terminated[t], b.truncated[t], b.valid[t])

    def add(self, steps: Steps) -> None:
        """Count a step that was written, and note what is special about it."""
        t = self.taken
        self.taken = t + 1
        for row, last in steps.finals:
            self.finals.append((t, row, last))
        for row in steps.failed:
            self.cut_before_failure(t, row)
        for row in steps.seeded:
            self.seeded_at[row] = t + 1
        if self.active is not None:
            resting = ~self.active
            for part in self.buffers.obs:
                part[t + 1][resting] = part[t][resting]

    def rest_where_ended(self) -> bool:
        """Let environments rest whose last step ended an episode; whether any goes on."""
        b, t = self.buffers, self.taken
        going = ~((b.terminated[t - 1] | b.truncated[t - 1]) & b.valid[t - 1])
        self.active = going if self.active is None else self.active & going
        if not self.active.any():
            return False
        if t == b.steps:
            if t > LONGEST_EPISODE:
                raise EnvError(
                    f"an episode did not end within {t} steps, and batch_mode is complete_episodes; set `horizon`"
                )
            self.buffers = b.grown(self._policy, 2 * t)
        return True

    def batch(self, recurrent: RecurrentActor | None) -> Batch:
        """All steps, with the observations that follow where an episode was cut off or the fragment ends."""
        b, steps = self.buffers, self.taken
        going = np.flatnonzero(~(b.terminated[steps - 1] | b.truncated[steps - 1]))
        cut_at = np.array([(t, row) for t, row, _ in self.finals], np.int64).reshape(-1, 2)
        going_at = np.stack([np.full(len(going), steps - 1), going], axis=1)
        final_at = np.concatenate([cut_at, going_at])
        order = np.lexsort(final_at.T[::-1])
        final_at = final_at[order]
        obs = tuple(part[:steps] for part in b.obs)
        final_obs = tuple(part[order] for part in self._final_obs(going))
        values = None if b.values is None else b.values[:steps]
        return Batch(
            obs=obs,
            actions=b.actions[:steps],
            rewards=b.rewards[:steps],
            terminated=b.terminated[:steps],
            truncated=b.truncated[:steps],
            valid=b.valid[:steps],
            log_probs=self._log_probs(),
            dist_inputs=b.dist_inputs[:steps],
            final_obs=final_obs,
            final_at=final_at,
            carried=None if recurrent is None else recurrent.record(final_at),
            cut=self.cut,
            values=values,
        )

    def cut_before_failure(self, t: int, row: int) -> None:
        """The failed step is no transition; the one before it becomes the last of a truncated episode."""
        self.buffers.rewards[t, row] = 0.0
        self.truncate_before(t, row)

    def truncate_before(self, t: int, row: int) -> bool:
        """Let the step before `t` be the last of a truncated episode, unless it ended one; whether it does."""
        b = self.buffers
        if t and b.valid[t - 1, row] and not (b.terminated[t - 1, row] or b.truncated[t - 1, row]):
            b.truncated[t - 1, row] = True
            self.finals.append((t - 1, row, tuple(part[t, row].copy() for part in b.obs)))
            return True
        return False

    def _final_obs(self, going: NDArray[np.int64]) -> list[NDArray[np.generic]]:
        """The last observations of truncated episodes, and after them those of the rows that go on."""
        parts = []
        for k, part in enumerate(self.buffers.obs):
            after_last = part[self.taken][going]
            if self.finals:
                after_last = np.concatenate([np.stack([last[k] for _, _, last in self.finals]), after_last])
            parts.append(after_last)
        return parts

    def _log_probs(self) -> Array:
        """Log-probabilities `[T, N]` of all actions in one pass; zeros where the policy has none."""
        b, lead = self.buffers, (self.taken, self.buffers.rewards.shape[1])
        if not self._policy.num_kept_outputs:
            return np.zeros(lead, np.float32)
        rows = lead[0] * lead[1]
        outputs = b.dist_inputs[: self.taken].reshape(rows, -1)
        actions = b.actions[: self.taken].reshape(rows, -1)
        return self._policy.distribution.evaluate(outputs, actions).log_prob.reshape(lead)
