"""A policy that acts for one environment in that environment's own process, bit for bit as the worker would."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Parts
from shoal.data.state import State
from shoal.envs.shared_rows import ActorShape
from shoal.models.compiled_mlp import CompiledMLP, compiled_like
from shoal.models.masked import MaskedNetwork
from shoal.models.mlp import MLP
from shoal.models.network import Array, Network
from shoal.models.policy import Policy

MOST_ROWS = 32  # of a network's input, of which all but one are wasted here


class RowActor:
    """Acts for the environment of a row among N.

    The network is given all N rows, as in the worker: BLAS rounds a row by how many others there are, and not by what
    is in them.
    """

    def __init__(self, policy: Policy, num_envs: int) -> None:
        self._network, self._encoder, self._distribution = policy.network, policy.encoder, policy.distribution
        self._is_compiled = type(_mlp_of(policy.network)) is CompiledMLP  # which travels as one of NumPy
        self._num_dist_inputs = policy.num_kept_outputs
        self._num_envs, self._row = num_envs, 0
        self.shape = ActorShape(self._num_dist_inputs, policy.distribution.num_noise, len(weights_of(policy)))

    @classmethod
    def of(cls, policy: Policy, num_envs: int) -> RowActor | None:
        """The actor of a policy; None where it cannot act in other processes, or only at a price.

        It can where observations are vectors, with or without masks, the network is an MLP without memory (NumPy's or
        the compiled one), and there are not too many environments.
        """
        is_plain = {*policy.obs_spec.kinds} <= {"vector", "mask"}
        is_mlp = type(_mlp_of(policy.network)) in (MLP, CompiledMLP)
        if not is_plain or not is_mlp or policy.recurrence is not None or num_envs > MOST_ROWS:
            return None
        return cls(policy, num_envs)

    def sit_at(self, row: int) -> None:
        """See `Actor`."""
        self._row = row
        mlp = _mlp_of(self._network)
        if self._is_compiled and type(mlp) is MLP:
            mlp = compiled_like(mlp)
            if isinstance(self._network, MaskedNetwork):
                self._network.network = mlp
            else:
                self._network = mlp
        self._params = mlp.params
        spec = self._encoder.spec
        self._obs = tuple(
            np.zeros((self._num_envs, *s), dtype) for s, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
        self._noise = np.zeros((self._num_envs, self.shape.num_noise), np.float32)

    def take_weights(self, weights: Array) -> None:
        """See `Actor`."""
        count = len(self._params)
        self._params[:] = weights[:count]
        if self._encoder.filter is not None:
            numbers = weights[count:].copy().view(np.float64)
            mean, m2 = numbers[2:].reshape(2, -1)
            count, clip = numbers[:2].tolist()
            self._encoder.filter.set_state(State.of(count=count, clip=clip, mean=mean, m2=m2))

    def act(self, obs: Parts, noise: Array | None) -> tuple[NDArray[Any], Array]:
        """See `Actor`."""
        row = self._row
        for mine, part in zip(self._obs, obs, strict=True):
            mine[row] = part[0]
        outputs = self._network.act(self._encoder(self._obs))
        if noise is None:
            actions = self._distribution.mode(outputs)
        else:
            self._noise[row] = noise
            actions = self._distribution.sample(outputs, self._noise)
        return actions[row], outputs[row, : self._num_dist_inputs]


def _mlp_of(network: Network) -> Network:
    return network.network if isinstance(network, MaskedNetwork) else network


def weights_of(policy: Policy) -> Array:
    """All numbers that a policy acts by, as an actor takes them."""
    params: Array = policy.network.params
    if policy.filter is None:
        return params
    told = policy.filter
    numbers = np.concatenate([[told.count, told.clip], told.mean, told.m2])
    return np.concatenate([params, numbers.view(np.float32)])
