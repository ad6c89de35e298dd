"""Proximal policy optimisation (Schulman et al. 2017), with the clipped surrogate and, if asked, the KL penalty.

    maximise   L(theta) = mean of  min(r A, clip(r, 1 - eps, 1 + eps) A)  -  c1 (V(s) - target)^2  +  c2 entropy

with r = pi_theta(a|s) / pi_old(a|s), eps = `clip_param`, c1 = `vf_loss_coeff`, c2 = `entropy_coeff`. The objective is
written as its gradient in output space: how much a little more log-probability, entropy, KL or value would change the
loss for each sample. Distributions and networks pull that back to the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.compiled_ppo import CompiledObjective, CompiledTerms, compiled_objective
from shoal.algorithms.minibatches import Epoch, Minibatches
from shoal.algorithms.network_inputs import BatchInputs, batch_inputs
from shoal.algorithms.on_policy import explained_variance, is_sound, values_and_advantages
from shoal.algorithms.optimizer import Optimizer
from shoal.algorithms.rewards import LearnedRewards
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch, Step
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.models.distributions import Evaluation
from shoal.models.kernel import check_close, checking
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group
from shoal.parallel.workers import Workers, check_usable

CACHED_ROWS = 512  # of a piece of a minibatch: about 1 MB of activations and their gradients in two nets of 64x64


class PPOLearner:
    """The learner: owns the optimiser, and makes the policy better by one batch at a time."""

    def __init__(self, config: PPOConfig, policy: Policy, group: Group | None = None) -> None:
        self.config, self.policy, self.group = config, policy, group or Alone()
        self.optimizer = Optimizer(policy.network, config, self.group)
        self.rewards = LearnedRewards(config, self.group)
        self.kl_coeff = config.kl_coeff
        self.minibatches = Minibatches(config.seed, config.sgd_minibatch_size, config.shuffle_sequences, policy.window)
        self._compiled = compiled_objective(policy, config)  # None: NumPy's
        if self._compiled is not None:
            self._check_compiled(self._compiled)

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Sample, then learn."""
        sample = workers.sample(self.config.steps_per_iteration)
        check_usable(sample)
        start = perf_counter()
        stats = self.update(sample.batch, timesteps_total)
        return Step.from_samples([sample], stats, perf_counter() - start)

    def update(self, batch: Batch, timesteps_total: int) -> dict[str, float]:
        """One iteration of learning from this learner's `[T, N]` steps; returns the statistics of all learners."""
        work = self.begin(batch, timesteps_total)
        with self.guarded(work):
            stats = self.passes(work)
        return self.finish(work, stats)

    def passes(self, work: Update, count: int = 0) -> dict[str, float]:
        """The passes over a batch that are left after the first `count`; the statistics of the last."""
        stats: dict[str, float] = {}
        for number, epoch in enumerate(work.epochs, start=count + 1):
            totals = self.statistics(number)
            self._learn_once(epoch, work.inputs, work.steps, work.now, totals)
            if totals is not None:
                stats = totals.means(self.group) | {"num_passes": float(number)}
                if self.is_far_enough(stats["kl"]):
                    break
        return stats

    def begin(self, batch: Batch, timesteps_total: int) -> Update:
        """What an update of the policy needs of a batch."""
        now = self._coefficients(timesteps_total)
        inputs = batch_inputs(self.policy, batch)
        values, steps = self.estimates(batch, inputs)
        epochs = self.minibatches.epochs(batch.valid, self.group, batch.columns, inputs.starts)
        return Update(batch, now, inputs, values, steps, islice(epochs, self.config.num_sgd_iter))

    def guarded(self, work: Update) -> AbstractContextManager[None]:
        """Take back an update that has thrown the network out of all bounds."""
        return self.optimizer.guarded(lambda: is_sound(self.policy, work.inputs, self.group))

    def statistics(self, count: int) -> EpochStatistics | None:
        """Where the statistics of the pass with this number are added up; None: nobody asks for them."""
        is_last = count == self.config.num_sgd_iter
        return EpochStatistics() if is_last or self.config.target_kl is not None else None

    def finish(self, work: Update, stats: dict[str, float]) -> dict[str, float]:
        """What follows the passes over a batch; the statistics of the last of them, and more."""
        now, batch, group = work.now, work.batch, self.group
        stats["refused_minibatches"] = float(self.optimizer.refused)
        stats["total_loss"] = (
            stats["policy_loss"]
            + self.config.vf_loss_coeff * stats["vf_loss"]
            - now.entropy_coeff * stats["entropy"]
            + now.kl_coeff * stats["kl"]
        )
        valid = batch.valid.reshape(-1)
        stats["vf_explained_var"] = explained_variance(work.values.reshape(-1)[valid], work.steps.targets[valid], group)
        stats |= {"cur_lr": now.lr, "cur_kl_coeff": now.kl_coeff}
        stats |= {"entropy_coeff": now.entropy_coeff, "clip_param": now.clip_param}
        stats["reward_scale"] = self.rewards.divisor
        self._adapt_kl_coeff(stats["kl"])
        self.policy.learn_filter(batch, group.sum)
        return stats

    def estimates(self, batch: Batch, inputs: BatchInputs) -> tuple[Array, BatchSteps]:
        """Values `[T, N]`, and what the objective asks of each step."""
        rewards = self.rewards.scaled(batch)
        values, advantages = values_and_advantages(self.policy, batch, rewards, inputs, self.config)
        return values, BatchSteps.from_batch(batch, advantages, advantages + values)

    def after_minibatch(self) -> None:
        """What a learner does between two minibatches; here nothing."""

    def get_state(self) -> State:
        """Optimiser, the rewards' scale, KL coefficient and the count of passes, from which minibatches follow."""
        optimizer, rewards = self.optimizer.get_state(), self.rewards.get_state()
        return State.of(kl_coeff=self.kl_coeff, passes=self.minibatches.passes, optimizer=optimizer, rewards=rewards)

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.kl_coeff = float(state.values["kl_coeff"])
        self.minibatches.passes = int(state.values["passes"])
        self.optimizer.set_state(state.part("optimizer"))
        self.rewards.set_state(state.part("rewards") if "rewards" in state.values else None)

    def _learn_once(
        self, epoch: Epoch, inputs: BatchInputs, steps: BatchSteps, now: Coefficients, totals: EpochStatistics | None
    ) -> None:
        """One pass over the batch: a step of the optimiser for each minibatch."""
        network = self.policy.network
        inputs_in = inputs.ordered(epoch.rows)
        ordered = steps.ordered(epoch, self.group, with_dist_inputs=now.kl_coeff > 0)
        for part, count in epoch:
            size = np.float32(1 / count)
            gradient: Array | None = None
            terms: list[Terms | CompiledTerms] = []
            for piece in self._pieces(part):
                outputs, values, tape = network.forward(inputs_in(piece))
                d_outputs, d_values, own_terms = self._loss_gradient(outputs, values, ordered.part(piece), now, size)
                own = network.vjp(tape, d_outputs, d_values)
                if gradient is None:
                    gradient = own if piece == part else own.copy()  # the network writes the next one over it
                else:
                    gradient += own
                terms.append(own_terms)
            assert gradient is not None
            norm = self.optimizer.step(gradient, now.lr)
            if totals is not None and norm is not None:
                totals.add(terms, size, norm / self.group.size)
            self.after_minibatch()

    def _pieces(self, part: slice) -> list[slice]:
        """A minibatch in pieces that stay in the cache from their forward pass to the backward one.

        For NumPy it is one piece: its calls cost more than the cache saves.
        """
        if self._compiled is None or part.stop - part.start <= CACHED_ROWS:
            return [part]
        begins = range(part.start, part.stop, CACHED_ROWS)
        return [slice(begin, min(begin + CACHED_ROWS, part.stop)) for begin in begins]

    def _loss_gradient(
        self, outputs: Array, values: Array, steps: BatchSteps, now: Coefficients, size: np.float32
    ) -> tuple[Array, Array, Terms | CompiledTerms]:
        """The loss's gradient by the network's outputs and values, and the terms that it is made of."""
        if self._compiled is not None and not now.kl_coeff:
            rows = (steps.actions, steps.log_probs, steps.advantages, steps.targets)
            return self._compiled.gradient(outputs, values, *rows, now.clip_param, now.entropy_coeff, size)
        terms = self.objective(outputs, values, steps, now)
        d_outputs, d_values = self.gradient(terms, now, size)
        return d_outputs, d_values, terms

    def _check_compiled(self, compiled: CompiledObjective) -> None:
        """Hold the kernel's gradient against the one below, on steps that are drawn."""
        rng, distribution, rows = np.random.default_rng(0), self.policy.distribution, 45
        outputs = rng.normal(0, 1, (rows, distribution.num_inputs)).astype(np.float32)
        values, log_probs, advantages, targets = rng.normal(0, 0.3, (4, rows)).astype(np.float32)
        actions = distribution.sample(outputs, distribution.noise(rng, rows))
        log_probs += distribution.evaluate(outputs, actions).log_prob
        steps = BatchSteps(actions, log_probs, None, advantages, targets)
        now = Coefficients(lr=1.0, entropy_coeff=0.1, clip_param=0.2, kl_coeff=0.0)
        size = np.float32(1 / rows)
        d_outputs, d_values = self.gradient(self.objective(outputs, values, steps, now), now, size)
        found, found_values, _ = compiled.gradient(
            outputs, values, actions, log_probs, advantages, targets, now.clip_param, now.entropy_coeff, size
        )
        with checking():
            check_close("PPO's gradient by outputs", found, d_outputs)
            check_close("PPO's gradient by values", found_values, d_values)

    def objective(self, outputs: Array, values: Array, steps: BatchSteps, now: Coefficients) -> Terms:
        """The terms of the objective for one minibatch, each `[B]`."""
        policy_now = self.policy.distribution.evaluate(outputs, steps.actions, steps.dist_inputs)
        log_ratio = policy_now.log_prob - steps.log_probs
        ratio = np.exp(np.minimum(log_ratio, 20))  # finite, however far the policy went
        surrogate = ratio * steps.advantages
        clipped = clipped_surrogate(ratio, steps.advantages, now.clip_param)
        value_error = values - steps.targets if self.config.use_critic else np.zeros_like(values)
        return Terms(policy_now, log_ratio, ratio, surrogate, clipped, value_error)

    def gradient(self, terms: Terms, now: Coefficients, size: np.float32) -> tuple[Array, Array]:
        """The loss's gradient by the network's outputs `[B, K]` and values `[B]`; `size` is 1 / B over all learners."""
        # Where the clipped branch is the smaller one, nothing moves it.
        d_log_prob = terms.surrogate * (terms.surrogate <= terms.clipped) * -size
        d_entropy = -now.entropy_coeff * size
        d_kl = now.kl_coeff * size if now.kl_coeff else 0.0
        d_outputs = self.policy.distribution.gradient(terms.now, d_log_prob, d_entropy, d_kl)
        error, clip = terms.value_error, self.config.vf_clip_param
        d_values = error * (2 * self.config.vf_loss_coeff * size)
        if clip is not None:
            d_values *= error * error <= clip
        return d_outputs, d_values

    def _coefficients(self, timesteps_total: int) -> Coefficients:
        c = self.config
        return Coefficients(
            lr=scheduled(c.lr, c.lr_schedule, timesteps_total),
            entropy_coeff=scheduled(c.entropy_coeff, c.entropy_coeff_schedule, timesteps_total),
            clip_param=scheduled(c.clip_param, c.clip_param_schedule, timesteps_total),
            kl_coeff=self.kl_coeff,
        )

    def is_far_enough(self, kl: float) -> bool:
        """Whether `target_kl` ends the passes over this batch."""
        return self.config.target_kl is not None and kl > 1.5 * self.config.target_kl

    def _adapt_kl_coeff(self, kl: float) -> None:
        if kl > 2 * self.config.kl_target:
            self.kl_coeff *= 1.5
        elif kl < 0.5 * self.config.kl_target:
            self.kl_coeff *= 0.5


def clipped_surrogate(ratio: Array, advantages: Array, clip_param: float) -> Array:
    """The surrogate with the ratio held within `1 +- clip_param` (equation 7)."""
    return np.asarray(np.minimum(np.maximum(ratio, 1 - clip_param), 1 + clip_param) * advantages)


@dataclass(frozen=True)
class Update:
    """One update of the policy: a batch, and what is to be learned from it."""

    batch: Batch
    now: Coefficients
    inputs: BatchInputs
    values: Array  # [T, N]
    steps: BatchSteps
    epochs: Iterator[Epoch]


@dataclass(frozen=True)
class Coefficients:
    """What weighs the terms of the objective in this iteration."""

    lr: float
    entropy_coeff: float
    clip_param: float
    kl_coeff: float


class Terms(NamedTuple):
    """The objective's terms for one minibatch, each `[B]`; the policy's part is the smaller of the two surrogates."""

    now: Evaluation
    log_ratio: Array
    ratio: Array
    surrogate: Array
    clipped: Array
    value_error: Array

    def sums(self, size: np.float32) -> tuple[Any, ...]:
        """What policy loss, value loss, entropy, KL and clipped steps add up to, times `size`."""
        kl = self.now.kl
        if kl is None:  # Schulman's low-variance estimate of KL(old, new) where the exact one is not needed
            kl = self.ratio - 1 - self.log_ratio
        return (
            -np.minimum(self.surrogate, self.clipped).sum() * size,
            np.dot(self.value_error, self.value_error) * size,
            self.now.entropy.sum() * size,
            kl.sum() * size,
            np.count_nonzero(self.surrogate > self.clipped) * size,
        )


class BatchSteps(NamedTuple):
    """What the objective asks of a batch beside what the network sees, a row for each step."""

    actions: NDArray[Any]  # [B, A]
    log_probs: Array  # [B], of the policy that sampled
    dist_inputs: Array | None  # [B, K], of the policy that sampled, for the KL penalty alone
    advantages: Array  # [B]
    targets: Array  # [B], of the values
    weights: Array | None = None  # [B], of the surrogates; None: all alike

    @classmethod
    def from_batch(cls, batch: Batch, advantages: Array, targets: Array) -> BatchSteps:
        """Every step of a `[T, N]` batch."""
        return cls(
            actions=batch.actions.reshape(-1, batch.actions.shape[2]),
            log_probs=batch.log_probs.reshape(-1),
            dist_inputs=batch.dist_inputs.reshape(-1, batch.dist_inputs.shape[2]),
            advantages=advantages.reshape(-1),
            targets=targets.reshape(-1),
        )

    def ordered(self, epoch: Epoch, group: Group, with_dist_inputs: bool) -> BatchSteps:
        """The steps in the order of a pass, with advantages of mean 0 and deviation 1 in every minibatch."""
        rows = epoch.rows
        dist_inputs = None
        if with_dist_inputs and self.dist_inputs is not None:
            dist_inputs = self.dist_inputs.take(rows, axis=0)
        advantages = epoch.normalized(self.advantages.take(rows), group)
        if self.weights is not None:  # they are positive, so the smaller of two surrogates stays the smaller
            advantages *= self.weights.take(rows)
        return BatchSteps(
            actions=self.actions.take(rows, axis=0),
            log_probs=self.log_probs.take(rows),
            dist_inputs=dist_inputs,
            advantages=advantages,
            targets=self.targets.take(rows),
        )

    def part(self, part: slice) -> BatchSteps:
        """A stretch of the steps."""
        dist_inputs = None if self.dist_inputs is None else self.dist_inputs[part]
        return BatchSteps(
            self.actions[part], self.log_probs[part], dist_inputs, self.advantages[part], self.targets[part]
        )


class EpochStatistics:
    """Sums of the statistics of the last pass over a batch."""

    NAMES = ("policy_loss", "vf_loss", "entropy", "kl", "clip_fraction", "grad_gnorm")

    def __init__(self) -> None:
        self.count = 0
        self._sums = np.zeros(len(self.NAMES))

    def add(self, terms: Sequence[Terms | CompiledTerms], size: np.float32, norm: float) -> None:
        """Count one minibatch, whose terms are there in pieces."""
        self.count += 1
        for piece in terms:
            self._sums[:-1] += np.array(piece.sums(size), np.float64)
        self._sums[-1] += norm

    def means(self, group: Group) -> dict[str, float]:
        """The mean of each statistic over the minibatches of all learners."""
        means = group.sum(self._sums) / max(self.count, 1)
        return dict(zip(self.NAMES, means.tolist(), strict=True))
