"""A policy that acts for one environment in that environment's own process, bit for bit as the worker would."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.state import State
from shoal.envs.shared_rows import ActorShape
from shoal.models.mlp import MLP
from shoal.models.network import Array
from shoal.models.policy import Policy

MOST_ROWS = 32  # of a network's input, of which all but one are wasted here


class RowActor:
    """Acts for the environment of a row among N.

    The network is given all N rows, as in the worker: BLAS rounds a row by how many others there are, and not by what
    is in them.
    """

    def __init__(self, policy: Policy, num_envs: int) -> None:
        self._network, self._encoder, self._distribution = policy.network, policy.encoder, policy.distribution
        self._num_dist_inputs = policy.distribution.num_inputs if policy.is_stochastic else 0
        self._num_envs, self._row = num_envs, 0
        self.shape = ActorShape(self._num_dist_inputs, policy.distribution.num_noise, len(weights_of(policy)))

    @classmethod
    def of(cls, policy: Policy, num_envs: int) -> RowActor | None:
        """The actor of a policy; None where it cannot act in other processes, or only at a price."""
        obs_spec = policy.obs_spec
        is_plain = len(obs_spec.leaves) == 1 and obs_spec.leaves[0].kind == "vector"
        if not is_plain or type(policy.network) is not MLP or policy.recurrence is not None or num_envs > MOST_ROWS:
            return None
        return cls(policy, num_envs)

    def sit_at(self, row: int) -> None:
        """See `Actor`."""
        self._row = row
        self._obs = np.zeros((self._num_envs, *self._encoder.spec.shapes[0]), self._encoder.spec.dtypes[0])
        self._noise = np.zeros((self._num_envs, self.shape.num_noise), np.float32)

    def take_weights(self, weights: Array) -> None:
        """See `Actor`."""
        count = len(self._network.params)
        self._network.params[:] = weights[:count]
        if self._encoder.filter is not None:
            numbers = weights[count:].copy().view(np.float64)
            mean, m2 = numbers[1:].reshape(2, -1)
            self._encoder.filter.set_state(State.of(count=float(numbers[0]), mean=mean, m2=m2))

    def act(self, obs: NDArray[Any], noise: Array | None) -> tuple[NDArray[Any], Array]:
        """See `Actor`."""
        row = self._row
        self._obs[row] = obs
        outputs = self._network.act(self._encoder((self._obs,)))
        if noise is None:
            actions = self._distribution.mode(outputs)
        else:
            self._noise[row] = noise
            actions = self._distribution.sample(outputs, self._noise)
        return actions[row], outputs[row, : self._num_dist_inputs]


def weights_of(policy: Policy) -> Array:
    """All numbers that a policy acts by, as an actor takes them."""
    params: Array = policy.network.params
    if policy.filter is None:
        return params
    told = policy.filter
    numbers = np.concatenate([[told.count], told.mean, told.m2])
    return np.concatenate([params, numbers.view(np.float32)])
