"""What PPO and TRPO have in common: advantages that are estimated from a batch, and statistics of it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from shoal.algorithms.network_inputs import BatchInputs, final_inputs
from shoal.config.on_policy import OnPolicyConfig
from shoal.data.batch import Batch
from shoal.data.returns import gae, successor_values
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.parallel.group import Group


def values_and_advantages(
    policy: Policy, batch: Batch, rewards: Array, inputs: BatchInputs, config: OnPolicyConfig
) -> tuple[Array, Array]:
    """Values and advantages `[T, N]`, from one pass of the value net over the batch and its final observations.

    Values that came with the actions are not computed again. `rewards` `[T, N]` are those to learn from
    (`LearnedRewards`).
    """
    values = np.zeros(rewards.shape, np.float32)
    final_values = np.zeros(len(batch.final_at), np.float32)
    if config.use_critic:
        if batch.values is not None:
            values = batch.values
        else:
            values.reshape(-1)[inputs.order] = values_of(policy, inputs.chunks())
        final_values = values_of(policy, final_inputs(policy, batch).chunks())
    following = successor_values(values, final_values, batch.final_at)
    lambda_ = config.lambda_ if config.use_gae else 1.0
    return values, gae(rewards, values, following, batch.terminated, batch.truncated, config.gamma, lambda_)


def values_of(policy: Policy, passes: Iterable[Inputs]) -> Array:
    """The values of all passes."""
    values = [np.zeros(0, np.float32)]
    for inputs in passes:
        values.append(policy.network.values(inputs).copy())
    return np.concatenate(values)


def is_sound(policy: Policy, inputs: BatchInputs, group: Group) -> bool:
    """Whether the network still gives finite outputs and values for what was seen, to every learner."""
    wrong = 0
    for chunk in islice(inputs.chunks(256), 1):
        outputs, values, _ = policy.network.forward(chunk)
        wrong = int(np.count_nonzero(~np.isfinite(outputs)) + np.count_nonzero(~np.isfinite(values)))
    return not group.sum(np.array([wrong])).any()


def outputs_of(policy: Policy, passes: Iterable[Inputs]) -> Array:
    """The outputs of all passes."""
    outputs = [np.zeros((0, policy.network.num_outputs), np.float32)]
    for inputs in passes:
        outputs.append(policy.network.act(inputs).copy())
    return np.concatenate(outputs)


def explained_variance(predicted: Array, actual: Array, group: Group) -> float:
    """How much of the targets' variance the predictions explain: 1 all, 0 none, below 0 worse than the mean."""
    actual = actual.astype(np.float64)
    error = actual - predicted
    sums = [len(actual), actual.sum(), np.dot(actual, actual), error.sum(), np.dot(error, error)]
    count, *sums = group.sum(np.array(sums, np.float64)).tolist()
    mean, square, mean_error, square_error = np.array(sums) / max(count, 1)
    variance = square - mean**2
    unexplained = square_error - mean_error**2
    if variance <= 0:
        return 0.0
    return float(1 - unexplained / variance)
