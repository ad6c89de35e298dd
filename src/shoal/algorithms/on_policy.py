"""What PPO and TRPO have in common: a batch is sampled and learned from once, by advantages estimated from it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from time import perf_counter
from typing import Protocol

import numpy as np

from shoal.algorithms.network_inputs import Seen, seen_at_ends
from shoal.config.settings import OnPolicyConfig
from shoal.data.batch import Batch, Step
from shoal.data.returns import gae, successor_values
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers, check_usable


class BatchLearner(Protocol):
    """Makes its policy better by one batch at a time."""

    def update(self, batch: Batch, timesteps_total: int) -> dict[str, float]:
        """One iteration of learning from `[T, N]` steps; returns the learner's statistics."""


def training_step(learner: BatchLearner, workers: Workers, steps: int, timesteps_total: int) -> Step:
    """Sample, then learn."""
    sample = workers.sample(steps)
    check_usable(sample)
    start = perf_counter()
    stats = learner.update(sample.batch, timesteps_total)
    return Step.of([sample], stats, perf_counter() - start)


def values_and_advantages(
    policy: Policy, batch: Batch, rewards: Array, seen: Seen, config: OnPolicyConfig
) -> tuple[Array, Array]:
    """Values and advantages `[T, N]`, from one pass of the value net over the batch and its final observations.

    `rewards` `[T, N]` are those to learn from (`LearnedRewards`).
    """
    values, final_values = np.zeros(rewards.shape, np.float32), np.zeros(len(batch.final_at), np.float32)
    if config.use_critic:
        values.reshape(-1)[seen.order] = values_of(policy, seen.chunks())
        final_values = values_of(policy, seen_at_ends(policy, batch).chunks())
    following = successor_values(values, final_values, batch.final_at)
    lambda_ = config.lambda_ if config.use_gae else 1.0
    return values, gae(rewards, values, following, batch.terminated, batch.truncated, config.gamma, lambda_)


def values_of(policy: Policy, passes: Iterable[Inputs]) -> Array:
    """The values of all passes."""
    return np.concatenate([np.zeros(0, np.float32), *(policy.network.values(inputs).copy() for inputs in passes)])


def is_sound(policy: Policy, seen: Seen, group: Group) -> bool:
    """Whether the network still gives finite outputs and values for what was seen, to every learner."""
    wrong = 0
    for inputs in islice(seen.chunks(256), 1):
        outputs, values, _ = policy.network.forward(inputs)
        wrong = int(np.count_nonzero(~np.isfinite(outputs)) + np.count_nonzero(~np.isfinite(values)))
    return not group.sum(np.array([wrong])).any()


def outputs_of(policy: Policy, passes: Iterable[Inputs]) -> Array:
    """The outputs of all passes."""
    nothing = np.zeros((0, policy.network.num_outputs), np.float32)
    return np.concatenate([nothing, *(policy.network.act(inputs).copy() for inputs in passes)])


def explained_variance(predicted: Array, actual: Array, group: Group) -> float:
    """How much of the targets' variance the predictions explain: 1 all, 0 none, below 0 worse than the mean."""
    sums = [len(actual)]
    for x in (actual.astype(np.float64), actual.astype(np.float64) - predicted):
        sums += [x.sum(), np.dot(x, x)]
    count, *sums = group.sum(np.array(sums, np.float64)).tolist()
    variance, unexplained = (
        square / max(count, 1) - (total / max(count, 1)) ** 2 for total, square in (sums[:2], sums[2:])
    )
    return 0.0 if variance <= 0 else float(1 - unexplained / variance)
