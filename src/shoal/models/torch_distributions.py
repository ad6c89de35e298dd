"""Action distributions of the user's own, in PyTorch with classic RLlib's signature: derivatives are autograd's.

A distribution must be a function of its inputs, the network's outputs, alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.envs.env_errors import error_text
from shoal.envs.spaces import ActionSpec, Space
from shoal.errors import ConfigError, ShoalError
from shoal.models.distributions import Array, Coefficient, Evaluation

NUM_EXAMPLES = 3
NUM_SEEDS = 2**24  # whole numbers that single precision tells apart


class TorchDistributionWrapper:
    """The parent of custom action distributions, around a `torch.distributions` object in `self.dist`.

    `inputs` `[B, K]` are what the network puts out, and `model` is None. Actions are `[B]` for Discrete spaces, counted
    from 0, and `[B, ...]` in the space's shape for others, -1 and 1 being the bounds with `normalize_actions`. What has
    an entry per number of an action is summed over them.
    """

    dist: Any

    def __init__(self, inputs: Tensor, model: Any) -> None:
        self.inputs, self.model = inputs, model

    @staticmethod
    def required_model_output_shape(action_space: Space, model_config: Mapping[str, Any]) -> Any:
        """How many outputs of the network an action needs."""
        raise NotImplementedError("write required_model_output_shape(action_space, model_config) as a staticmethod")

    def sample(self) -> Tensor:
        """Actions by torch's own random numbers, which are seeded before every call."""
        drawn: Tensor = self.dist.sample()
        return drawn

    def deterministic_sample(self) -> Tensor:
        """The actions that are taken without exploration."""
        raise NotImplementedError("write deterministic_sample(self)")

    def logp(self, actions: Tensor) -> Tensor:
        """Logarithms of the probabilities, or densities, of actions."""
        found: Tensor = self.dist.log_prob(actions)
        return found

    def entropy(self) -> Tensor:
        """The entropy."""
        found: Tensor = self.dist.entropy()
        return found

    def kl(self, other: Any) -> Tensor:
        """The KL divergence from this distribution to another of its kind."""
        return torch.distributions.kl_divergence(self.dist, other.dist)


class CustomDistribution:
    """A classic distribution behind the `Distribution` contract."""

    num_noise = 1  # a seed

    def __init__(self, kind: type[Any], spec: ActionSpec, model_config: Mapping[str, Any]) -> None:
        self.name = f"custom_action_dist {kind.__name__}"
        if not issubclass(kind, TorchDistributionWrapper):
            words = f"write class {kind.__name__}(TorchDistributionWrapper), with TorchDistributionWrapper from shoal"
            raise ConfigError(f"config.model.custom_action_dist: {words}")
        if len(spec.leaves) != 1 or spec.leaves[0].path:
            raise ConfigError(
                f"config.model.custom_action_dist: it cannot act in Dict and Tuple spaces (got {spec.space})"
            )
        self._kind, self._dtype = kind, spec.dtype
        self._shape: tuple[int, ...] = tuple(spec.space.shape or ())  # of one action; none of a Discrete one
        self.num_actions = spec.size
        try:
            outputs = kind.required_model_output_shape(spec.space, model_config)
            self.num_inputs = prod(int(n) for n in np.atleast_1d(outputs))
            self._try()
        except ShoalError:
            raise
        except Exception as error:
            raise ConfigError(f"{self.name} fails: {error_text(error)}") from error

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """A seed for each step."""
        return rng.integers(0, NUM_SEEDS, (steps, 1)).astype(np.float32)

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Each row by itself, with the seed that is its noise."""
        drawn = []
        # The caller's own random numbers go on as if nothing had been drawn here.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for row, seed in enumerate(noise[:, 0].astype(np.int64).tolist()):
                torch.default_generator.manual_seed(seed)
                drawn.append(self._rows(self._at(inputs[row : row + 1]).sample(), 1))
        return np.concatenate(drawn)

    def mode(self, inputs: Array) -> NDArray[Any]:
        """What the distribution takes without exploration."""
        with torch.no_grad():
            return self._rows(self._at(inputs).deterministic_sample(), len(inputs))

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """See `Distribution`."""
        x = torch.tensor(inputs, requires_grad=True)
        now = self._kind(x, None)
        taken = torch.from_numpy(np.ascontiguousarray(actions)).reshape(len(actions), *self._shape)
        terms = [self._total(now.logp(taken), len(x)), self._total(now.entropy(), len(x))]
        if old_inputs is not None:
            terms.append(self._total(self._at(old_inputs).kl(now), len(x)))
        log_prob, entropy, *kl = [term.detach().numpy() for term in terms]
        return Evaluation(log_prob, entropy, kl[0] if kl else None, (x, terms))

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """See `Distribution`."""
        x, terms = e.saved
        total = torch.zeros(())
        for coefficient, term in zip((d_log_prob, d_entropy, d_kl), terms, strict=False):
            total = total + (torch.as_tensor(coefficient) * term).sum()
        return self._slope(total, x).numpy()

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """The Hessian of the KL at equality, times the tangent."""
        x = torch.tensor(inputs, requires_grad=True)
        kl = self._total(self._at(inputs).kl(self._kind(x, None)), len(x)).sum()
        slope = self._slope(kl, x, create_graph=True)
        return self._slope((slope * torch.from_numpy(tangent)).sum(), x).numpy()

    def _at(self, inputs: Array) -> Any:
        return self._kind(torch.from_numpy(np.ascontiguousarray(inputs)), None)

    def _slope(self, total: Tensor, x: Tensor, create_graph: bool = False) -> Tensor:
        if not total.requires_grad:
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(
            total, x, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
        return slope

    def _rows(self, actions: Tensor, count: int) -> NDArray[Any]:
        if tuple(actions.shape) != (count, *self._shape):
            wanted = ["B", *map(str, self._shape)]
            raise ConfigError(f"{self.name}: expected actions [{', '.join(wanted)}], got {tuple(actions.shape)}")
        return np.asarray(actions.reshape(count, -1).numpy(), self._dtype)

    def _total(self, term: Tensor, count: int) -> Tensor:
        """One number for each row."""
        if term.dim() == 0 or len(term) != count:
            raise ConfigError(
                f"{self.name}: expected log-probabilities, entropies and KLs [B], got {tuple(term.shape)}"
            )
        return term.reshape(count, -1).sum(dim=1).float()

    def _try(self) -> None:
        """Find wrong shapes and what is not there before the first iteration."""
        rng = np.random.default_rng(0)
        inputs = rng.standard_normal((NUM_EXAMPLES, self.num_inputs)).astype(np.float32)
        actions = self.sample(inputs, self.noise(rng, NUM_EXAMPLES))
        self.mode(inputs)
        e = self.evaluate(inputs, actions, inputs)
        self.gradient(e, 1.0, 1.0, 1.0)
        self.fisher(inputs, inputs)
