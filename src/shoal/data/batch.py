"""What workers give to learners: arrays of steps, and the episodes and incidents they contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Parts = tuple[NDArray[Any], ...]
"""One observation batch: one array per part of the observation (all numbers in one vector, then each image)."""


@dataclass(frozen=True)
class Batch:
    """T steps of N environments. Valid until the sampler that made it samples again.

    The successor of step (t, n) is `obs[t + 1, n]`, except at the places listed in `final_at` (steps that truncated,
    and the last step of the fragment where it did not terminate): there it is the matching row of `final_obs`.
    A row with `valid` False is no transition (the environment failed there, or a vector environment spent the step on
    its reset): it is marked terminated, and must have no influence on learning.
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
    final_at: NDArray[np.int64]  # [F, 2], (t, n)

    @property
    def num_steps(self) -> int:
        """How many real transitions there are."""
        return int(np.count_nonzero(self.valid))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The fragments of several workers, side by side in the order of their environments."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    offsets = np.cumsum([0] + [b.rewards.shape[1] for b in batches[:-1]])
    joined = {
        f.name: np.concatenate([getattr(b, f.name) for b in batches], axis=1)
        for f in fields(Batch)
        if f.name not in ("obs", "final_obs", "final_at")
    }
    return replace(
        first,
        **joined,
        obs=tuple(np.concatenate(part, axis=1) for part in zip(*(b.obs for b in batches), strict=True)),
        final_obs=tuple(np.concatenate(part) for part in zip(*(b.final_obs for b in batches), strict=True)),
        final_at=np.concatenate([b.final_at + np.array([0, n]) for b, n in zip(batches, offsets, strict=True)]),
    )


@dataclass(frozen=True)
class Episode:
    """One finished episode, as it is reported."""

    env_index: int
    reward: float
    length: int
    metrics: dict[str, float] = field(default_factory=dict)  # numbers found in the last `info`


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


@dataclass(frozen=True)
class Sample:
    """What one call of `sample` gives."""

    batch: Batch
    episodes: list[Episode]
    incidents: list[Incident]
    env_time_s: float  # mean over the workers
    policy_time_s: float


@dataclass(frozen=True)
class Step:
    """What one training step did, as the trainer reports it."""

    timesteps: int
    episodes: list[Episode]
    incidents: list[Incident]
    stats: dict[str, float]
    timers: dict[str, float]  # seconds by name

    @classmethod
    def of(cls, sample: Sample, stats: dict[str, float], learn_time_s: float) -> Step:
        """One sample that was learned from."""
        timers = {"env": sample.env_time_s, "policy": sample.policy_time_s, "learn": learn_time_s}
        return cls(sample.batch.num_steps, sample.episodes, sample.incidents, stats, timers)
