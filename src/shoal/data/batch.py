"""What workers give to learners: arrays of steps, and the episodes and incidents they contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Parts = tuple[NDArray[Any], ...]
"""One observation batch: one array per part of the observation (all numbers in one vector, then each image)."""


@dataclass(frozen=True)
class RecurrentRecord:
    """What a policy with memory carried into the steps of a batch: what its network's outputs depended on beside them.

    A sequence to learn from begins with each episode, from the network's initial state, and at the places in
    `states_at`, from the state that was there: at the fragment's first step, and where a sequence would get too long.
    """

    previous: Array  # [T, N, P], the action and reward before each step, encoded; zeros where an episode begins
    states: Parts  # each [Z, ...]
    states_at: NDArray[np.int64]  # [Z, 2], (t, n), in ascending order
    final: Parts  # each [F, ...]: what was before `final_obs`, and the state there


@dataclass(frozen=True)
class Batch:
    """T steps of N environments. Valid until the sampler that made it samples again.

    The successor of step (t, n) is `obs[t + 1, n]`, except at the places listed in `final_at` (steps that truncated,
    and the last step of the fragment where it did not terminate): there it is the matching row of `final_obs`.
    A row with `valid` False is no transition (the environment failed there, a vector environment spent the step on its
    reset, or the environment took fewer steps than others): it is marked terminated, and must have no influence on
    learning. An environment that was late (`straggler_quorum`) ends with a truncated step, whose successor is listed as
    any other, and its episode goes on in the next batch; `cut` tells it from one that ended.
    """

    obs: Parts  # each [T, N, ...], raw: before filter and one-hot
    actions: NDArray[Any]  # [T, N, A]
    rewards: Array  # [T, N]
    terminated: NDArray[np.bool_]  # [T, N]
    truncated: NDArray[np.bool_]  # [T, N]
    valid: NDArray[np.bool_]  # [T, N]
    log_probs: Array  # [T, N], of the behaviour policy; zeros where it has none
    dist_inputs: Array  # [T, N, K], the behaviour policy's network outputs; K is 0 where it has no log-probabilities
    final_obs: Parts  # each [F, ...]
    final_at: NDArray[np.int64]  # [F, 2], (t, n), in ascending order: one order for any number of workers
    columns: NDArray[np.int64] | None = None  # [N], which of all environments these are; None: all of them
    carried: RecurrentRecord | None = None  # of a policy with memory
    cut: NDArray[np.bool_] | None = None  # [N], whose last step is marked truncated only because it was late
    others: Mapping[str, Batch] | None = None  # what the agents of other policies did, by policy, if there are several
    values: Array | None = None  # [T, N], of the policy that sampled, where they came with its outputs

    @property
    def num_steps(self) -> int:
        """How many real transitions there are."""
        return int(np.count_nonzero(self.valid))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The fragments of several workers, side by side in the order of their environments."""
    if len(batches) == 1:
        return batches[0]
    longest = max(len(batch.rewards) for batch in batches)
    batches = [padded(batch, longest) for batch in batches]
    first = batches[0]
    joined: dict[str, Any] = {}
    for each in fields(Batch):
        if each.name not in ("obs", "final_obs", "final_at", "columns", "carried", "cut", "others", "values"):
            joined[each.name] = np.concatenate([getattr(b, each.name) for b in batches], axis=1)
    observations = zip(*[b.obs for b in batches], strict=True)
    joined["obs"] = tuple(np.concatenate(part, axis=1) for part in observations)
    joined["values"] = _joined_values(batches)

    widths = [b.rewards.shape[1] for b in batches]
    offsets = np.cumsum([0, *widths[:-1]])
    joined["final_at"], order = _joined_places([b.final_at for b in batches], offsets)
    joined["final_obs"] = _joined_rows([b.final_obs for b in batches], order)

    joined["cut"] = _joined_cuts(batches)
    joined["others"] = _joined_others(batches)
    carried = [b.carried for b in batches if b.carried is not None]
    if carried:
        states_at, states_order = _joined_places([c.states_at for c in carried], offsets)
        previous = np.concatenate([c.previous for c in carried], axis=1)
        states = _joined_rows([c.states for c in carried], states_order)
        final = _joined_rows([c.final for c in carried], order)
        joined["carried"] = RecurrentRecord(previous, states, states_at, final)
    return replace(first, **joined)


def _joined_others(batches: Sequence[Batch]) -> dict[str, Batch] | None:
    """What the agents of other policies did in several fragments, by policy."""
    apart = [batch.others for batch in batches if batch.others is not None]
    if not apart:
        return None
    return {name: concatenate([others[name] for others in apart]) for name in apart[0]}


def _joined_cuts(batches: Sequence[Batch]) -> NDArray[np.bool_] | None:
    """Who was late in one of several fragments."""
    if all(batch.cut is None for batch in batches):
        return None
    cuts = [np.zeros(batch.rewards.shape[1], bool) if batch.cut is None else batch.cut for batch in batches]
    return np.concatenate(cuts)


def _joined_values(batches: Sequence[Batch]) -> Array | None:
    """The values of all fragments side by side; None where they did not come with the actions."""
    values = [batch.values for batch in batches if batch.values is not None]
    if not values:
        return None
    return np.concatenate(values, axis=1)


def _joined_rows(parts: Sequence[Parts], order: NDArray[np.int64]) -> Parts:
    """What several fragments have at their places, in the order of all."""
    return tuple(np.concatenate(part)[order] for part in zip(*parts, strict=True))


def _joined_places(
    places: Sequence[NDArray[np.int64]], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places `(t, n)` of several fragments side by side in ascending order, and that order."""
    joined = np.concatenate([at + np.array([0, n]) for at, n in zip(places, offsets, strict=True)])
    order = np.lexsort(joined.T[::-1])
    return joined[order], order


def padded(batch: Batch, steps: int) -> Batch:
    """A fragment made as long as the longest with rows that are no transitions (complete episodes end unevenly)."""
    if len(batch.rewards) == steps:
        return batch

    def longer(array: NDArray[Any], value: Any = 0) -> NDArray[Any]:
        room = np.full((steps - len(array), *array.shape[1:]), value, array.dtype)
        return np.concatenate([array, room])

    rows: dict[str, Any] = {
        name: longer(getattr(batch, name))
        for name in ("actions", "rewards", "truncated", "valid", "log_probs", "dist_inputs")
    }
    if batch.values is not None:
        rows["values"] = longer(batch.values)
    if batch.carried is not None:
        rows["carried"] = replace(batch.carried, previous=longer(batch.carried.previous))
    return replace(
        batch, obs=tuple(longer(part) for part in batch.obs), terminated=longer(batch.terminated, True), **rows
    )


@dataclass(frozen=True)
class Episode:
    """One finished episode, as it is reported."""

    env_index: int
    reward: float
    length: int
    metrics: dict[str, float] = field(default_factory=dict)  # numbers of the last `info`, and of hooks
    task: Any = None  # that it was played at, if one was set
    policy_rewards: dict[str, list[float]] = field(default_factory=dict)  # returns of each policy's agents, if several


@dataclass(frozen=True)
class Incident:
    """One failure of an environment, with all that is needed to replay it."""

    env_index: int
    worker_index: int
    seed: int  # of its last seeded reset
    steps_since_seed: int
    step: int  # steps since the episode's reset; 0 = in reset
    action: str
    cause: str  # one line
    traceback: str
    host: str = ""  # where it happened, if that is another process
    settings: str = ""  # task and drawn values of the episode, if there are any
    kind: str = "error"  # or hang, signal, exit, memory, disk: what only a process of its own survives
    exit_code: int | None = None  # of the environment's process; a signal as a negative number
    output: str = ""  # the last that the process printed, with the Python stack where it hung or crashed
    scratch: str = field(default="", compare=False)  # where the environment's scratch_dir is kept, on its host
    time: float = 0.0  # seconds since 1970
    seeding: int = 0  # how many seeds the environment has had
    task: Any = None
    options: dict[str, Any] = field(default_factory=dict)  # drawn for the episode
    env_config: dict[str, Any] = field(default_factory=dict)
    actions: NDArray[Any] | None = field(default=None, compare=False)  # [n, A], since the seed, the last one included


@dataclass(frozen=True, kw_only=True)
class SampleSummary:
    """What the trainer reports of one call of `sample`."""

    num_steps: int  # real transitions
    episodes: list[Episode]
    incidents: list[Incident]
    env_time_s: float  # mean over the workers
    policy_time_s: float
    communicate_time_s: float = 0.0  # waiting for workers that had already finished sampling
    staleness: int = 0  # updates between the weights that sampled and those that learn
    wait_s: float = 0.0  # of the learner, until the first of what it asked for was finished
    weights_version: int = 0  # that the learner gave to the weights which sampled (see `begin_fragments`)
    notes: tuple[str, ...] = ()  # what the user should hear once


@dataclass(frozen=True, kw_only=True)
class Sample(SampleSummary):
    """What one call of `sample` gives."""

    batch: Batch
    env_indices: Sequence[int] | None = None  # of the batch's columns, where a lost worker's are missing; None: all

    @property
    def summary(self) -> SampleSummary:
        """The sample without its batch."""
        return SampleSummary(**{f.name: getattr(self, f.name) for f in fields(SampleSummary)})


@dataclass(frozen=True)
class Step:
    """What one training step did, as the trainer reports it."""

    timesteps: int
    episodes: list[Episode]
    incidents: list[Incident]
    stats: dict[str, float]
    timers: dict[str, float]  # seconds by name
    staleness: int = 0  # updates between the weights that sampled and those that learned
    wait_s: float = 0.0  # in which the learner had nothing to do
    notes: tuple[str, ...] = ()  # what the user should hear once
    before_s: float = 0.0  # that it had taken already when it was asked for, together with those of others

    @classmethod
    def from_samples(cls, samples: Sequence[SampleSummary], stats: dict[str, float], learn_time_s: float) -> Step:
        """Samples that were learned from."""
        episodes: list[Episode] = []
        incidents: list[Incident] = []
        timesteps = staleness = 0
        wait_s = 0.0
        notes: tuple[str, ...] = ()
        timers = {"env": 0.0, "policy": 0.0, "communicate": 0.0, "learn": learn_time_s}
        for sample in samples:
            timesteps += sample.num_steps
            episodes += sample.episodes
            incidents += sample.incidents
            timers["env"] += sample.env_time_s
            timers["policy"] += sample.policy_time_s
            timers["communicate"] += sample.communicate_time_s
            staleness = max(staleness, sample.staleness)
            wait_s += sample.wait_s
            notes += sample.notes
        return cls(timesteps, episodes, incidents, stats, timers, staleness, wait_s, notes)
