"""Trust region policy optimisation (Schulman et al. 2015).

    maximise   L(theta)  = mean of  pi_theta(a|s) / pi_behaviour(a|s) * A(s, a)
    such that  KL(theta) = mean of  KL(pi_now(.|s) || pi_theta(.|s))  <=  max_kl

With g the gradient of L and F the Hessian of KL at the present parameters (the Fisher matrix), the step is along the
solution x of (F + cg_damping I) x = g, as long as x'Fx allows, and shortened until the true KL and L agree. F is never
formed: F v is `vjp(M jvp(v))`, with M the Fisher matrix of the action distribution in closed form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import isfinite, sqrt
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.minibatches import Epoch, Minibatches
from shoal.algorithms.network_inputs import BatchInputs, batch_inputs
from shoal.algorithms.on_policy import explained_variance, is_sound, outputs_of, values_and_advantages
from shoal.algorithms.optimizer import Optimizer
from shoal.algorithms.rewards import LearnedRewards
from shoal.config.trpo import DAMPING_PER_NUMBER, MAX_KL_PER_NUMBER, TRPOConfig
from shoal.data.batch import Batch, Step
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.errors import ConfigError
from shoal.models.network import Array, Network
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group
from shoal.parallel.workers import Workers, check_usable

log = logging.getLogger("shoal")

Vector = NDArray[np.float64]

BACKTRACK = 0.8  # of each length that the line search tries to the one before
CG_TOLERANCE = 1e-10  # squared residual, as a share of the squared gradient, below which CG has nothing left to do
TAPE_ROWS, TAPE_BYTES = 16384, 16 << 20  # the most of one forward pass whose derivatives are wanted


class TRPOLearner:
    """The learner: steps the policy to the edge of the trust region, then fits the values, by one batch at a time."""

    def __init__(self, config: TRPOConfig, policy: Policy, group: Group | None = None) -> None:
        self.config, self.policy, self.group = config, policy, group or Alone()
        if config.use_critic and not policy.network.value_params.any():
            raise ConfigError(
                "config.model: TRPO fits the values without moving the policy, and this model has no parameters that "
                "the values alone depend on; give it a value layer of its own, or set use_critic: false, use_gae: false"
            )
        self.optimizer = Optimizer(policy.network, config, self.group)
        self.rewards = LearnedRewards(config, self.group)
        self.minibatches = Minibatches(config.seed, config.sgd_minibatch_size, window=policy.window)

    @property
    def max_kl(self) -> float:
        """The size of the trust region, with auto resolved."""
        if self.config.max_kl == "auto":
            return MAX_KL_PER_NUMBER * self.policy.action_spec.size
        return self.config.max_kl

    @property
    def cg_damping(self) -> float:
        """What is added to the Fisher matrix's diagonal, with auto resolved."""
        if self.config.cg_damping == "auto":
            return DAMPING_PER_NUMBER * self.policy.action_spec.size
        return self.config.cg_damping

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Sample, then learn."""
        sample = workers.sample(self.config.steps_per_iteration)
        check_usable(sample)
        start = perf_counter()
        stats = self.update(sample.batch, timesteps_total)
        return Step.from_samples([sample], stats, perf_counter() - start)

    def update(self, batch: Batch, timesteps_total: int) -> dict[str, float]:
        """One iteration of learning from this learner's `[T, N]` steps; returns the statistics of all learners."""
        c, policy = self.config, self.policy
        lr = scheduled(c.lr, c.lr_schedule, timesteps_total)
        inputs = batch_inputs(policy, batch)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found and refused
            values, advantages = values_and_advantages(policy, batch, self.rewards.scaled(batch), inputs, c)
            targets = (advantages + values).reshape(-1)
            stats = self._step_policy(TrustRegion(policy, self.group, batch, inputs, advantages, c.fisher_subsample))
            stats |= self._fit_values(batch, inputs, targets, lr)
        valid = batch.valid.reshape(-1)
        stats["vf_explained_var"] = explained_variance(values.reshape(-1)[valid], targets[valid], self.group)
        stats |= {"cur_lr": lr, "reward_scale": self.rewards.divisor}
        policy.learn_filter(batch, self.group.sum)
        return stats

    def get_state(self) -> State:
        """The value fit's optimiser, the rewards' scale and the count of passes, from which minibatches follow."""
        optimizer, rewards = self.optimizer.get_state(), self.rewards.get_state()
        return State.of(passes=self.minibatches.passes, optimizer=optimizer, rewards=rewards)

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.minibatches.passes = int(state.values["passes"])
        self.optimizer.set_state(state.part("optimizer"))
        self.rewards.set_state(state.part("rewards") if "rewards" in state.values else None)

    def _step_policy(self, region: TrustRegion) -> dict[str, float]:
        """The natural gradient step, as long as the trust region allows; none if it is not finite."""
        c, network = self.config, self.policy.network
        max_kl, before = self.max_kl, network.params.copy()
        start, gradient = region.gradient()
        direction, curvature = conjugate_gradient(region.fisher_product, gradient, c.cg_iters, self.cg_damping)
        norm = sqrt(gradient @ gradient)
        refused = not (isfinite(norm) and isfinite(curvature) and isfinite(direction @ direction))
        reached, taken = start, 0.0
        if refused:
            log.warning("the policy's step is not finite: it is skipped, and the policy stays as it was")
        elif curvature > 0:
            step = sqrt(2 * max_kl / curvature) * direction
            for fraction in BACKTRACK ** np.arange(c.line_search_steps):
                network.params[:] = before + fraction * step
                network.sync()
                now = region.measured()
                if now.kl <= max_kl and now.surrogate > start.surrogate:
                    reached, taken = now, float(fraction)
                    break
            else:
                network.params[:] = before
                network.sync()
        return {
            "policy_loss": -reached.surrogate,
            "kl": reached.kl,
            "entropy": reached.entropy,
            "grad_gnorm": norm,
            "step_fraction": taken,
            "max_kl": max_kl,
            "refused_steps": float(refused),
        }

    def _fit_values(self, batch: Batch, inputs: BatchInputs, targets: Array, lr: float) -> dict[str, float]:
        """Passes of Adam over the squared errors; no parameter moves that the policy depends on."""
        if not self.config.use_critic:
            return {"vf_loss": 0.0, "refused_minibatches": 0.0}
        loss = 0.0
        epochs = self.minibatches.epochs(batch.valid, self.group, batch.columns, inputs.starts)
        with self.optimizer.guarded(lambda: is_sound(self.policy, inputs, self.group), what="the value fit"):
            for epoch in islice(epochs, self.config.num_sgd_iter):
                loss = self._fit_once(epoch, inputs, targets, lr)
        loss = float(self.group.sum(np.array([loss]))[0])
        return {"vf_loss": loss, "refused_minibatches": float(self.optimizer.refused)}

    def _fit_once(self, epoch: Epoch, inputs: BatchInputs, targets: Array, lr: float) -> float:
        """One pass over the squared errors, a step for each minibatch; this learner's part of their mean."""
        network = self.policy.network
        losses, count = 0.0, 0
        for part, size in epoch:
            rows = epoch.rows[part]
            if len(rows):
                predicted, tape = network.forward_value(inputs.take(rows))
                error = predicted - targets.take(rows)
                losses += float(np.dot(error, error)) / size
                gradient = network.vjp(tape, None, error * np.float32(2 / size))
            else:
                gradient = np.zeros_like(network.params)
            self.optimizer.step(gradient, lr)
            count += 1
        return losses / max(count, 1)


@dataclass(frozen=True)
class Measured:
    """What a policy is worth by the batch, over all learners."""

    surrogate: float
    kl: float  # from the policy at the centre of the trust region
    entropy: float


class TrustRegion:
    """Surrogate and KL around the policy as it is now, and their derivatives; every number is one of all learners.

    The centre is the present policy, even where an older one sampled the batch: only the surrogate's ratio knows that.
    """

    def __init__(
        self, policy: Policy, group: Group, batch: Batch, inputs: BatchInputs, advantages: Array, subsample: int
    ) -> None:
        self.policy, self.group = policy, group
        steps, num_envs = batch.valid.shape
        valid = batch.valid.reshape(-1)
        times = np.arange(steps * num_envs) // max(num_envs, 1)
        if inputs.starts is not None:  # whole sequences
            times = inputs.starts.reshape(-1) // policy.window
        thinned = valid & (times % subsample == 0)
        self._inputs = inputs.only(valid)
        rows = self._inputs.order
        self._actions = batch.actions.reshape(len(valid), batch.actions.shape[2])[rows]
        self._behaviour_log_probs, advantages = batch.log_probs.reshape(-1)[rows], advantages.reshape(-1)[rows]
        sums = [len(advantages), np.count_nonzero(thinned), advantages.sum(dtype=np.float64)]
        self._count, thinned_count, total = group.sum(np.array(sums, np.float64)).tolist()
        self._thinned_count = max(thinned_count, 1)
        advantages = advantages - np.float32(total / self._count)
        square = float(group.sum(np.array([np.dot(advantages, advantages)], np.float64))[0])
        self._advantages = advantages / np.float32(sqrt(square / self._count) + 1e-8)
        self._passes = ForwardPasses(policy.network, self._inputs)
        self._thinned = self._passes
        if subsample > 1:
            self._thinned = ForwardPasses(policy.network, inputs.only(thinned))
        self._centre = np.zeros((0, policy.network.num_outputs), np.float32)

    def gradient(self) -> tuple[Measured, Vector]:
        """The surrogate of the present policy, and its gradient."""
        network, distribution = self.policy.network, self.policy.distribution
        gradient = np.zeros(len(network.params), np.float32)
        centre, sums = [self._centre[:0]], np.zeros(2)
        for part, outputs, tape in self._passes:
            now = distribution.evaluate(outputs, self._actions[part])
            gain = self._ratio(now.log_prob, part) * self._advantages[part]
            d_outputs = distribution.gradient(now, gain * np.float32(1 / self._count), 0.0, 0.0)
            gradient += network.vjp(tape, d_outputs, None, self._passes.kept)
            centre.append(outputs.copy())
            sums += gain.sum(dtype=np.float64), now.entropy.sum(dtype=np.float64)
        self._centre = np.concatenate(centre)
        surrogate, entropy = (self.group.sum(sums) / self._count).tolist()
        return Measured(surrogate, 0.0, entropy), self.group.sum(gradient).astype(np.float64)

    def fisher_product(self, v: Vector) -> Vector:
        """The Fisher matrix of the present policy times `v`."""
        network, distribution = self.policy.network, self.policy.distribution
        tangent = v.astype(np.float32)
        product = np.zeros(len(network.params), np.float32)
        for _, outputs, tape in self._thinned:
            d_outputs = distribution.fisher(outputs, network.jvp(tape, tangent))
            d_outputs *= np.float32(1 / self._thinned_count)
            product += network.vjp(tape, d_outputs, None, self._thinned.kept)
        return self.group.sum(product).astype(np.float64)

    def measured(self) -> Measured:
        """What the network's parameters are worth now."""
        outputs = outputs_of(self.policy, self._inputs.chunks())
        now = self.policy.distribution.evaluate(outputs, self._actions, self._centre)
        assert now.kl is not None
        gain = self._ratio(now.log_prob, slice(None)) * self._advantages
        sums = [x.sum(dtype=np.float64) for x in (gain, now.kl, now.entropy)]
        return Measured(*(self.group.sum(np.array(sums)) / self._count).tolist())

    def _ratio(self, log_prob: Array, part: slice) -> Array:
        # Finite, however far the policy went.
        return np.asarray(np.exp(np.minimum(log_prob - self._behaviour_log_probs[part], 20)))


class ForwardPasses:
    """Forward passes of the policy over rows, few enough at a time for their tapes to fit in memory.

    Where one pass is enough, its tape is `kept` and serves again: the parameters must not move meanwhile.
    """

    def __init__(self, network: Network, inputs: BatchInputs) -> None:
        self._network = network
        self._parts = list(inputs.chunks(TAPE_ROWS, TAPE_BYTES))
        self._first: tuple[Array, Any] | None = None
        self.kept = len(self._parts) == 1

    def __iter__(self) -> Iterator[tuple[slice, Array, Any]]:
        """Rows, their outputs, and the tape."""
        begin = 0
        for inputs in self._parts:
            outputs, tape = self._first or self._network.forward_policy(inputs)
            if self.kept:
                self._first = outputs, tape
            yield slice(begin, begin + len(outputs)), outputs, tape
            begin += len(outputs)


def conjugate_gradient(
    product: Callable[[Vector], Vector], b: Vector, iterations: int, damping: float
) -> tuple[Vector, float]:
    """An approximate solution x of `(A + damping I) x = b`, and x'Ax; `product(v)` is A v."""
    x, residual = np.zeros_like(b), b.copy()
    direction, square = residual.copy(), float(residual @ residual)
    enough = CG_TOLERANCE * square
    for _ in range(iterations):
        if not square > enough:
            break
        moved = product(direction) + damping * direction
        along = float(direction @ moved)
        if along <= 0:
            break  # nothing in the batch depends on where this leads
        length = square / along
        x += length * direction
        residual -= length * moved
        before, square = square, float(residual @ residual)
        direction *= square / before
        direction += residual
    # (A + damping I) x is b less the residual, so no further product is needed.
    return x, float(x @ (b - residual) - damping * (x @ x))
