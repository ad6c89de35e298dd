"""PPO's objective in the compiled kernel (`models/kernel.c`): the same gradient as `ppo.py` writes out, in one call."""

from __future__ import annotations

import ctypes
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.config.ppo import PPOConfig
from shoal.models.compiled_mlp import CompiledMLP
from shoal.models.distributions import Categorical, Distribution, Gaussian
from shoal.models.kernel import CATEGORICAL, GAUSSIAN, Kernel, ObjectiveStruct, address
from shoal.models.network import Array
from shoal.models.policy import Policy


class CompiledTerms(NamedTuple):
    """What the objective's terms add up to over a minibatch; see `Terms`."""

    totals: NDArray[np.float64]  # [5]

    def sums(self, size: np.float32) -> tuple[Any, ...]:
        """See `Terms`."""
        surrogate, *others = self.totals.tolist()
        return (-surrogate * size, *(total * size for total in others))


class CompiledObjective:
    """The gradient of PPO's loss by outputs and values, for the distributions that the kernel knows."""

    def __init__(self, kernel: Kernel, distribution: Distribution, config: PPOConfig) -> None:
        self._kernel = kernel
        self._struct = _struct_of(distribution)
        self._num_actions = distribution.num_actions
        self._action_type = np.float32 if self._struct.kind == GAUSSIAN else np.int64
        self._struct.vf_loss_coeff = config.vf_loss_coeff
        self._struct.vf_clip_param = inf if config.vf_clip_param is None else config.vf_clip_param
        self._struct.use_critic = int(config.use_critic)
        self._room = np.empty(3 * distribution.num_inputs, np.float32)

    def gradient(
        self,
        outputs: Array,
        values: Array,
        actions: NDArray[Any],
        log_probs: Array,
        advantages: Array,
        targets: Array,
        clip_param: float,
        entropy_coeff: float,
        size: np.float32,
    ) -> tuple[Array, Array, CompiledTerms]:
        """By outputs `[B, K]` and by values `[B]`; `size` is 1 / B over all learners."""
        struct = self._struct
        struct.clip_param, struct.entropy_coeff, struct.size = clip_param, entropy_coeff, size
        actions = np.ascontiguousarray(actions, self._action_type)
        assert actions.shape == (len(outputs), self._num_actions)
        rows = [np.ascontiguousarray(row, np.float32) for row in (log_probs, advantages, targets)]
        d_outputs, d_values = np.empty_like(outputs), np.empty_like(values)
        totals = np.empty(5)
        wrong = self._kernel.ppo_gradient(
            ctypes.addressof(struct),
            len(outputs),
            address(outputs),
            address(values),
            address(actions),
            *map(address, rows),
            address(d_outputs),
            address(d_values),
            address(self._room),
            address(totals),
        )
        if wrong >= 0:
            raise IndexError(f"action {actions[wrong].tolist()} is none of the {struct.choices} choices")
        return d_outputs, d_values, CompiledTerms(totals)


def compiled_objective(policy: Policy, config: PPOConfig) -> CompiledObjective | None:
    """The objective of a policy whose network is compiled, if the kernel knows its distribution; else NumPy's is used.

    A mask stands between network and distribution, so that the kernel cannot know it.
    """
    distribution = policy.distribution
    is_known = type(distribution) is Categorical
    if type(distribution) is Gaussian:
        is_known = distribution.learned_spread
    if not is_known or not isinstance(policy.network, CompiledMLP):
        return None
    return CompiledObjective(policy.network.kernel, distribution, config)


def _struct_of(distribution: Distribution) -> ObjectiveStruct:
    if isinstance(distribution, Categorical):
        return ObjectiveStruct(kind=CATEGORICAL, count=distribution.count, choices=distribution.n)
    return ObjectiveStruct(kind=GAUSSIAN, count=distribution.num_actions)
