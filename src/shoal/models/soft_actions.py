"""A policy's actions as soft actor-critic learns them: numbers are sampled, choices are averaged over.

Every continuous number is a differentiable function of its noise (u = mean + sigma * noise, and tanh(u) where it is
squashed), so the critics' slope reaches the policy through it (Haarnoja et al. 2018). Choices are summed over exactly,
all combinations of them (Christodoulou 2019; both kinds at once: Delalleau et al. 2019). A critic takes the numbers as
inputs, and has one output for each combination; without choices, one output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.spaces import ActionSpec
from shoal.errors import ConfigError
from shoal.models.distributions import (
    LOG_STD_RANGE,
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Product,
    log_tanh_slope,
)
from shoal.models.masked import LEAST
from shoal.models.network import Array

MOST_COMBINATIONS = 1024
Columns = NDArray[np.int64]


@dataclass(frozen=True)
class SoftSample:
    """Sampled numbers and the probabilities of all choices, for B observations."""

    numbers: Array  # [B, C], as critics take them
    deviations: Array  # [B, C], sigma * noise
    learned: NDArray[np.bool_]  # [B, C], where the spread is inside its range, and moves by gradient
    log_p: Array  # [B, S], of the options of each choice, one choice after another
    joint: Array  # [B, K], probabilities of all combinations
    entropies: Array  # [B, G]: of the numbers, by this sample; of the choices, exactly

    def value(self, q: Array, alphas: Array) -> Array:
        """The soft value `[B]`: the mean of `q` `[B, K]`, and each entropy times its temperature `[G]`."""
        return np.asarray(np.einsum("ij,ij->i", self.joint, q) + self.entropies @ alphas)


class SoftActions:
    """How rows of a network's outputs become samples, and the gradient that goes back to them.

    There is a temperature for each of the `kinds` of actions in the space: its numbers, and its choices.
    """

    def __init__(self, distribution: Distribution, spec: ActionSpec, algorithm: str = "SAC") -> None:
        means: list[int] = []
        log_stds: list[int] = []
        numbers: list[int] = []  # columns of a row of actions
        options: list[int] = []  # outputs; -1 is the constant 0, which a bit's logit is measured against
        self._sizes: list[int] = []  # options of each choice
        choices: list[int] = []  # columns of a row of actions
        for factor, output, action in _placed(distribution):
            if isinstance(factor, Gaussian):
                means += range(output, output + factor.num_actions)
                log_stds += range(output + factor.num_actions, output + factor.num_inputs)
                numbers += range(action, action + factor.num_actions)
                continue
            choices += range(action, action + factor.num_actions)
            if isinstance(factor, Categorical):
                options += range(output, output + factor.num_inputs)
                self._sizes += [factor.n] * factor.count
            else:
                assert isinstance(factor, Bernoulli)
                for bit in range(output, output + factor.num_inputs):
                    options += [-1, bit]
                self._sizes += [2] * factor.num_actions
        squashed = [leaf.squashed for leaf in spec.leaves if leaf.kind == "gaussian"]
        self.num_outputs = distribution.num_inputs
        self.num_numbers = len(numbers)
        self.num_combinations = prod(self._sizes)
        if self.num_combinations > MOST_COMBINATIONS:
            raise ConfigError(
                f"run: {algorithm} has a value for every combination of choices, and those of this action_space have "
                f"{self.num_combinations:,}, more than {MOST_COMBINATIONS:,}: {spec.space}; "
                "set run: PPO"
            )
        self.kinds = tuple(kind for kind, there in (("numbers", numbers), ("choices", choices)) if there)
        self._means, self._log_stds, self._numbers = (np.array(found, np.int64) for found in (means, log_stds, numbers))
        self._choices = np.array(choices, np.int64)
        self._squashed = np.concatenate([*squashed, np.zeros(0, bool)]).astype(np.float32)
        self._options = np.array(options, np.int64)
        self._begins = np.array([0, *accumulate(self._sizes)][:-1], np.int64)
        table = np.stack(np.unravel_index(np.arange(self.num_combinations), self._sizes or (1,)))  # [choices, K]
        self._members = np.zeros((len(options), self.num_combinations), np.float32)  # which options a combination has
        for begin, row in zip(self._begins, table, strict=False):
            self._members[begin + row, np.arange(self.num_combinations)] = 1

    def noise(self, rng: np.random.Generator, rows: int) -> Array:
        """Standard normal numbers `[rows, C]`."""
        return rng.standard_normal((rows, self.num_numbers), dtype=np.float32)

    def taken(self, actions: NDArray[Any]) -> tuple[Array, Columns]:
        """The numbers `[B, C]` of replayed actions as critics take them, and their combinations `[B]`."""
        rows = actions.reshape(len(actions), -1)
        combinations = np.zeros(len(rows), np.int64)
        for size, column in zip(self._sizes, self._choices, strict=True):
            combinations = combinations * size + rows[:, column].astype(np.int64)
        return self._squash(rows[:, self._numbers].astype(np.float32)), combinations

    def sample(self, outputs: Array, noise: Array) -> SoftSample:
        """What the policy does where its outputs are these, `[B, K]`, with noise `[B, C]`."""
        log_std = outputs[:, self._log_stds]
        learned = (log_std > LOG_STD_RANGE[0]) & (log_std < LOG_STD_RANGE[1])
        log_std = np.clip(log_std, *LOG_STD_RANGE)
        deviations = np.exp(log_std) * noise
        u = outputs[:, self._means] + deviations
        log_p = self._log_softmax(outputs)
        joint = np.exp(log_p @ self._members)
        entropies = []
        if "numbers" in self.kinds:
            # -log of the density of tanh(u), which is that of u over the slope of tanh
            each = noise * noise * np.float32(0.5) + log_std + np.float32(0.5 * np.log(2 * np.pi))
            entropies.append((each + log_tanh_slope(u) * self._squashed).sum(axis=1))
        if "choices" in self.kinds:
            entropies.append(-(np.exp(log_p) * log_p).sum(axis=1))
        return SoftSample(self._squash(u), deviations, learned, log_p, joint, np.stack(entropies, axis=1))

    def largest_entropy(self, now: SoftSample) -> float:
        """The mean entropy of choices that are alike among all options that are allowed."""
        allowed = np.add.reduceat(now.log_p > LEAST / 2, self._begins, axis=1)
        return float(np.log(np.maximum(allowed, 1)).sum(axis=1).mean())

    def gradient(self, now: SoftSample, q: Array, d_numbers: Array, alphas: Array) -> Array:
        """The derivative `[B, K]` of `-now.value(q, alphas)` by the outputs.

        `d_numbers` `[B, C]` is that of the mean of `-q` by the sampled numbers, which the critics give.
        """
        gradient = np.zeros((len(q), self.num_outputs), np.float32)
        if "numbers" in self.kinds:
            # -H rises with u by 2 tanh(u), and falls with log sigma by 1; u itself moves with sigma by its deviation.
            tanh = now.numbers * self._squashed
            d_u = d_numbers * (1 - tanh * tanh) + (2 * alphas[0]) * tanh
            gradient[:, self._means] = d_u
            gradient[:, self._log_stds] = (d_u * now.deviations - alphas[0]) * now.learned
        if "choices" in self.kinds:
            # For a choice with probabilities p and g = -E[q | option] + alpha log p: d = p (g - sum p g).
            p = np.exp(now.log_p)
            weighted = now.joint * q
            each = p * (alphas[-1] * now.log_p) - weighted @ self._members.T
            d_options = each - p * self._repeated(np.add.reduceat(each, self._begins, axis=1))
            moving = self._options >= 0
            gradient[:, self._options[moving]] = d_options[:, moving]
        return gradient

    def _squash(self, u: Array) -> Array:
        if not self._squashed.any():
            return u
        return np.where(self._squashed > 0, np.tanh(u), u)

    def _log_softmax(self, outputs: Array) -> Array:
        """Log-probabilities `[B, S]` of the options of each choice."""
        if not len(self._options):
            return np.zeros((len(outputs), 0), np.float32)
        logits = outputs[:, self._options] * (self._options >= 0)
        logits -= self._repeated(np.maximum.reduceat(logits, self._begins, axis=1))
        logits -= self._repeated(np.log(np.add.reduceat(np.exp(logits), self._begins, axis=1)))
        return np.asarray(logits, np.float32)

    def _repeated(self, of_choices: Array) -> Array:
        """A number of each choice `[B, choices]` beside each of its options `[B, S]`."""
        return np.repeat(of_choices, self._sizes, axis=1)


def _placed(distribution: Distribution) -> Iterator[tuple[Distribution, int, int]]:
    """The factors of a distribution, each with its first output and its first number in a row of actions."""
    factors = distribution.factors if isinstance(distribution, Product) else [distribution]
    output = action = 0
    for factor in factors:
        yield factor, output, action
        output, action = output + factor.num_inputs, action + factor.num_actions
