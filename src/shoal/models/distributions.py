"""Action distributions over network outputs, with every derivative in closed form.

Each takes `inputs` `[B, K]` (what the network put out) and `actions` `[B, A]` (indices, bits or floats). An algorithm
asks `evaluate` for log-probability, entropy and KL, decides how much it wants of each, and `gradient` gives the
derivative with respect to the inputs. `fisher` is the Hessian of the KL at equality, what natural gradients divide by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.envs.spaces import ActionSpec

Array = NDArray[np.float32]
Coefficient = Array | float | np.floating[Any]
LOG_STD_RANGE = (-20.0, 2.0)
ENTROPY_NODES = 32


@dataclass(frozen=True)
class Evaluation:
    """What a distribution says about given actions; `saved` is for `gradient` alone."""

    log_prob: Array  # [B]
    entropy: Array  # [B]
    kl: Array | None  # [B], from the old inputs' distribution to this one
    saved: Any


class Distribution(Protocol):
    """A family of action distributions, parametrised by network outputs."""

    num_inputs: int  # K
    num_actions: int  # A
    num_noise: int  # M

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """All randomness that `steps` samples of one environment need, `[steps, M]`."""

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Actions `[B, A]`, a deterministic function of inputs and noise."""

    def mode(self, inputs: Array) -> NDArray[Any]:
        """The likeliest actions `[B, A]`."""

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """Log-probability of the actions, entropy, and the KL from the distribution at `old_inputs`."""

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """The derivative `[B, K]` of `sum(d_log_prob * log_prob + d_entropy * entropy + d_kl * kl)`."""

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """The Fisher information at `inputs` times `tangent`, both `[B, K]`."""


class Categorical:
    """`count` independent choices among `n` each, from logits."""

    def __init__(self, n: int, count: int = 1) -> None:
        self.n, self.count = n, count
        self.num_inputs = self.num_noise = n * count
        self.num_actions = count

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """Gumbel noise: the largest of logit + noise is a sample of the softmax."""
        e = rng.standard_exponential((steps, self.num_noise), dtype=np.float32)
        return -np.log(np.maximum(e, np.float32(1e-30)))

    def noise_of_all(self, rngs: Sequence[np.random.Generator], steps: int) -> Array:
        """The same noise of many environments, `[N, steps, M]`, with one logarithm of all."""
        e = np.empty((len(rngs), steps, self.num_noise), np.float32)
        for rng, room in zip(rngs, e, strict=True):
            rng.standard_exponential(out=room, dtype=np.float32)
        np.log(np.maximum(e, np.float32(1e-30)), out=e)
        return -e

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """The Gumbel-max trick."""
        return self.mode(inputs + noise)

    def mode(self, inputs: Array) -> NDArray[Any]:
        """The largest logit of each choice."""
        return np.asarray(inputs.reshape(-1, self.count, self.n).argmax(axis=2))

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """See `Distribution`."""
        logp, p = self._softmax(inputs)
        chosen = actions.reshape(-1).astype(np.intp, copy=False), np.arange(logp.shape[1])
        log_prob = self._total(logp[chosen])
        entropy_each = -np.einsum("ij,ij->j", p, logp)
        kl, old_p = None, None
        if old_inputs is not None:
            old_logp, old_p = self._softmax(old_inputs)
            kl = self._total(np.einsum("ij,ij->j", old_p, old_logp - logp))
        return Evaluation(log_prob, self._total(entropy_each), kl, (logp, p, chosen, entropy_each, old_p))

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """With respect to the logits: d log p_a = 1_a - p;  d H = -p (log p + H);  d KL = p - p_old."""
        logp, p, chosen, entropy, old_p = e.saved
        each = self._each(d_log_prob)
        g: Array = p * -each
        g[chosen] += each
        if np.ndim(d_entropy) or d_entropy:
            g -= self._each(d_entropy) * (p * (logp + entropy))
        if old_p is not None and (np.ndim(d_kl) or d_kl):
            g += self._each(d_kl) * (p - old_p)
        return np.ascontiguousarray(g.T).reshape(-1, self.num_inputs)

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """The Fisher matrix of the logits is diag(p) - p p'."""
        _, p = self._softmax(inputs)
        pv = p * tangent.reshape(-1, self.n).T
        return np.ascontiguousarray((pv - p * pv.sum(axis=0)).T).reshape(-1, self.num_inputs)

    def _softmax(self, inputs: Array) -> tuple[Array, Array]:
        """Log-probabilities and probabilities, one column per choice `[n, B * count]`: long rows are quick to sum."""
        logp = inputs.reshape(-1, self.n).T.copy()
        logp -= logp.max(axis=0)
        p = np.exp(logp)
        total = p.sum(axis=0)
        p /= total
        logp -= np.log(total, out=total)
        return logp, p

    def _total(self, each: Array) -> Array:
        if self.count == 1:
            return each
        return np.asarray(each.reshape(-1, self.count).sum(axis=1))

    def _each(self, coefficient: Coefficient) -> Array:
        c = np.asarray(coefficient, np.float32)
        if self.count == 1 or not c.ndim:
            return c
        return np.repeat(c, self.count)


class Bernoulli:
    """`count` independent bits, from logits."""

    def __init__(self, count: int) -> None:
        self.num_inputs = self.num_actions = self.num_noise = count

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """Logistic noise: logit + noise > 0 is a sample."""
        u = np.clip(rng.random((steps, self.num_noise), dtype=np.float32), 1e-7, 1 - 1e-7)
        return np.asarray(np.log(u) - np.log1p(-u), np.float32)

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Bits `[B, A]`."""
        return self.mode(inputs + noise)

    def mode(self, inputs: Array) -> NDArray[Any]:
        """Each bit at its likelier value."""
        return (inputs > 0).astype(np.int64)

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """See `Distribution`."""
        p, softplus = _sigmoid(inputs), np.logaddexp(0, inputs)
        log_prob = (actions * inputs - softplus).sum(axis=1, dtype=np.float32)
        entropy = (softplus - inputs * p).sum(axis=1)
        kl, old_p = None, None
        if old_inputs is not None:
            old_p = _sigmoid(old_inputs)
            kl = (old_p * (old_inputs - inputs) + softplus - np.logaddexp(0, old_inputs)).sum(axis=1)
        return Evaluation(log_prob, entropy, kl, (inputs, actions, p, old_p))

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """With d log p = a - p, d H = -z p (1 - p) and d KL = p - p_old."""
        z, actions, p, old_p = e.saved
        g = _column(d_log_prob) * (actions - p) - _column(d_entropy) * (z * p * (1 - p))
        if old_p is not None:
            g += _column(d_kl) * (p - old_p)
        return np.asarray(g, np.float32)

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """Diag(p (1 - p)) v."""
        p = _sigmoid(inputs)
        return np.asarray(p * (1 - p) * tangent, np.float32)


class Gaussian:
    """`count` independent normal numbers; inputs are the means, then the logarithms of the standard deviations.

    Without `learned_spread`, no gradient reaches the standard deviations: they are what somebody sets them to.
    """

    def __init__(self, count: int, learned_spread: bool = True) -> None:
        self.learned_spread = learned_spread
        self.num_actions = self.num_noise = count
        self.num_inputs = 2 * count

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """Standard normal numbers."""
        return rng.standard_normal((steps, self.num_noise), dtype=np.float32)

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Mean + sigma * noise."""
        mean, log_std = self._split(inputs)
        return mean + np.exp(log_std) * noise

    def mode(self, inputs: Array) -> NDArray[Any]:
        """The mean."""
        return inputs[:, : self.num_actions]

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """See `Distribution`."""
        mean, log_std = self._split(inputs)
        inverse_std = np.exp(-log_std)
        z = (actions - mean) * inverse_std
        half_log_2pi = 0.5 * np.log(2 * np.pi)
        log_prob = -(0.5 * z * z + log_std).sum(axis=1) - np.float32(self.num_actions * half_log_2pi)
        entropy = log_std.sum(axis=1) + np.float32(self.num_actions * (half_log_2pi + 0.5))
        kl, old = None, None
        if old_inputs is not None:
            old_mean, old_log_std = self._split(old_inputs)
            shift = (mean - old_mean) * inverse_std
            spread = np.exp(2 * (old_log_std - log_std))
            kl = (log_std - old_log_std + 0.5 * (spread + shift * shift) - 0.5).sum(axis=1)
            old = (shift, spread)
        return Evaluation(log_prob, entropy, kl, (inputs, z, inverse_std, old))

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """With z = (a - mean) / sigma: d log p = (z / sigma, z^2 - 1);  d H = (0, 1)."""
        inputs, z, inverse_std, old = e.saved
        n = self.num_actions
        g = np.empty_like(inputs)
        g[:, :n] = _column(d_log_prob) * (z * inverse_std)
        g[:, n:] = _column(d_log_prob) * (z * z - 1) + _column(d_entropy)
        if old is not None:
            shift, spread = old
            g[:, :n] += _column(d_kl) * (shift * inverse_std)
            g[:, n:] += _column(d_kl) * (1 - spread - shift * shift)
        return self._inside(inputs, g)

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """diag(1 / sigma^2, 2) v."""
        n = self.num_actions
        _, log_std = self._split(inputs)
        g = np.empty_like(tangent)
        g[:, :n] = tangent[:, :n] * np.exp(-2 * log_std)
        g[:, n:] = 2 * tangent[:, n:]
        return self._inside(inputs, g)

    def _split(self, inputs: Array) -> tuple[Array, Array]:
        return inputs[:, : self.num_actions], np.clip(inputs[:, self.num_actions :], *LOG_STD_RANGE)

    def _inside(self, inputs: Array, g: Array) -> Array:
        """A standard deviation that is given, or at the end of its range, does not move by gradient."""
        if not self.learned_spread:
            g[:, self.num_actions :] = 0
            return g
        raw = inputs[:, self.num_actions :]
        g[:, self.num_actions :] *= (raw > LOG_STD_RANGE[0]) & (raw < LOG_STD_RANGE[1])
        return g


class SquashedGaussian(Gaussian):
    """Normal numbers of which some pass a tanh on their way to the environment; actions are the numbers before it.

    Log-probabilities are densities of the numbers after it, less by log(1 - tanh(u)^2) of each. KL and Fisher matrix
    are the same before and after, for a tanh loses nothing. The entropy changes by the mean of that logarithm, which
    has no closed form: Gauss-Hermite quadrature gives it, and its derivatives are those of the quadrature.
    """

    def __init__(self, squashed: NDArray[np.bool_], learned_spread: bool = True) -> None:
        super().__init__(len(squashed), learned_spread)
        self._squashed = squashed.astype(np.float32)
        nodes, weights = np.polynomial.hermite_e.hermegauss(ENTROPY_NODES)
        self._nodes, self._weights = nodes.astype(np.float32), (weights / weights.sum()).astype(np.float32)

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """See `Distribution`."""
        e = super().evaluate(inputs, actions, old_inputs)
        u, _ = self._at_nodes(inputs)
        log_prob = e.log_prob - log_tanh_slope(actions) @ self._squashed
        entropy = e.entropy + (log_tanh_slope(u) @ self._weights) @ self._squashed
        return Evaluation(log_prob, entropy, e.kl, e.saved)

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """The Gaussian's, and the entropy's change: d log(1 - tanh(u)^2) = -2 tanh(u) d u."""
        g = super().gradient(e, d_log_prob, d_entropy, d_kl)
        if np.ndim(d_entropy) or d_entropy:
            u, deviation = self._at_nodes(e.saved[0])
            slope = -2 * np.tanh(u)
            change = np.concatenate([slope @ self._weights, (slope * deviation) @ self._weights], axis=1)
            change *= _column(d_entropy) * np.tile(self._squashed, 2)
            g += self._inside(e.saved[0], change)
        return g

    def _at_nodes(self, inputs: Array) -> tuple[Array, Array]:
        """Numbers at the nodes of the quadrature, and how far from their mean, both `[B, A, Q]`."""
        mean, log_std = self._split(inputs)
        deviation: Array = np.exp(log_std)[:, :, None] * self._nodes
        return mean[:, :, None] + deviation, deviation


class Product:
    """Independent distributions side by side: MultiDiscrete with unequal choices, Dict and Tuple actions."""

    def __init__(self, factors: Sequence[Distribution]) -> None:
        self.factors = list(factors)
        self.num_inputs = self.num_actions = self.num_noise = 0
        self._inputs: list[slice] = []  # the columns of each factor
        self._actions: list[slice] = []
        self._noise: list[slice] = []
        # As actions are stored: what is stepped, learned from and replayed must be the same numbers to the last bit.
        self._dtype: type[np.generic] = np.int64
        for factor in factors:
            self._inputs.append(slice(self.num_inputs, self.num_inputs + factor.num_inputs))
            self._actions.append(slice(self.num_actions, self.num_actions + factor.num_actions))
            self._noise.append(slice(self.num_noise, self.num_noise + factor.num_noise))
            self.num_inputs += factor.num_inputs
            self.num_actions += factor.num_actions
            self.num_noise += factor.num_noise
            if isinstance(factor, Gaussian):
                self._dtype = np.float32

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """Each factor's noise, side by side."""
        return np.concatenate([f.noise(rng, steps) for f in self.factors], axis=1)

    def sample(self, inputs: Array, noise: Array) -> NDArray[Any]:
        """Each factor's sample, side by side."""
        samples = []
        for factor, i, m in zip(self.factors, self._inputs, self._noise, strict=True):
            samples.append(factor.sample(inputs[:, i], noise[:, m]))
        return np.concatenate(samples, axis=1, dtype=self._dtype)

    def mode(self, inputs: Array) -> NDArray[Any]:
        """Each factor's mode, side by side."""
        modes = []
        for factor, i in zip(self.factors, self._inputs, strict=True):
            modes.append(factor.mode(inputs[:, i]))
        return np.concatenate(modes, axis=1, dtype=self._dtype)

    def evaluate(self, inputs: Array, actions: NDArray[Any], old_inputs: Array | None = None) -> Evaluation:
        """Logarithms, entropies and KLs of independent factors add up."""
        log_prob, entropy = np.zeros(len(inputs), np.float32), np.zeros(len(inputs), np.float32)
        kl = None if old_inputs is None else np.zeros(len(inputs), np.float32)
        parts = []
        for factor, i, a in zip(self.factors, self._inputs, self._actions, strict=True):
            old = None if old_inputs is None else old_inputs[:, i]
            part = factor.evaluate(inputs[:, i], actions[:, a], old)
            log_prob += part.log_prob
            entropy += part.entropy
            if kl is not None and part.kl is not None:
                kl += part.kl
            parts.append(part)
        return Evaluation(log_prob, entropy, kl, parts)

    def gradient(self, e: Evaluation, d_log_prob: Coefficient, d_entropy: Coefficient, d_kl: Coefficient) -> Array:
        """Each factor's gradient, side by side."""
        gradients = []
        for factor, part in zip(self.factors, e.saved, strict=True):
            gradients.append(factor.gradient(part, d_log_prob, d_entropy, d_kl))
        return np.concatenate(gradients, axis=1)

    def fisher(self, inputs: Array, tangent: Array) -> Array:
        """The Fisher matrix is block-diagonal."""
        products = []
        for factor, i in zip(self.factors, self._inputs, strict=True):
            products.append(factor.fisher(inputs[:, i], tangent[:, i]))
        return np.concatenate(products, axis=1)


def distribution_for(spec: ActionSpec, learned_spread: bool = True) -> Distribution:
    """The distribution that an action space asks for."""
    factors: list[Distribution] = []
    for leaf in spec.leaves:
        if leaf.kind == "categorical":
            for n, run in groupby(leaf.choices):
                factors.append(Categorical(n, len(list(run))))
        elif leaf.kind == "bernoulli":
            factors.append(Bernoulli(leaf.size))
        elif leaf.squashed.any():
            factors.append(SquashedGaussian(leaf.squashed, learned_spread))
        else:
            factors.append(Gaussian(leaf.size, learned_spread))
    if len(factors) == 1:
        return factors[0]
    return Product(factors)


def log_std_inputs(distribution: Distribution) -> NDArray[np.int64]:
    """Which inputs are logarithms of standard deviations: with `free_log_std` they do not depend on the observation."""
    found: list[int] = []
    for factor, first, _ in _gaussians(distribution):
        found += range(first + factor.num_actions, first + factor.num_inputs)
    return np.array(found, np.int64)


def gaussian_noise(distribution: Distribution) -> NDArray[np.int64]:
    """Which numbers of the noise belong to continuous actions."""
    found: list[int] = []
    for factor, _, first in _gaussians(distribution):
        found += range(first, first + factor.num_noise)
    return np.array(found, np.int64)


def _gaussians(distribution: Distribution) -> Iterator[tuple[Gaussian, int, int]]:
    """The normal factors of a distribution, each with its first input and its first number of the noise."""
    factors = distribution.factors if isinstance(distribution, Product) else [distribution]
    inputs = noise = 0
    for factor in factors:
        if isinstance(factor, Gaussian):
            yield factor, inputs, noise
        inputs, noise = inputs + factor.num_inputs, noise + factor.num_noise


def _column(coefficient: Coefficient) -> Array:
    c = np.asarray(coefficient, np.float32)
    if not c.ndim:
        return c
    return c[:, None]


def log_tanh_slope(u: NDArray[Any]) -> Array:
    """log(1 - tanh(u)^2), also where that is too small to be a number."""
    size = np.abs(u)
    return np.asarray(2 * (np.float32(np.log(2)) - size - np.log1p(np.exp(-2 * size))), np.float32)


def _sigmoid(z: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * z)), np.float32)
