"""Proximal policy optimisation (Schulman et al. 2017), with the clipped surrogate and, if asked, the KL penalty.

The objective is written as its gradient in output space: how much a little more log-probability, entropy, KL or value
would change the loss for each sample. Distributions and networks pull that back to the parameters.
"""

from __future__ import annotations

import logging
from itertools import islice
from math import isfinite, sqrt
from typing import Any

import numpy as np

from shoal.algorithms.adam import Adam
from shoal.algorithms.minibatches import Minibatches
from shoal.algorithms.on_policy import explained_variance, training_step, values_and_advantages
from shoal.algorithms.seen import Seen, seen_by
from shoal.config.ppo import PPOConfig
from shoal.data.batch import Batch, Step
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group
from shoal.parallel.workers import Workers

log = logging.getLogger("shoal")


class PPO:
    """The learner: owns the optimiser, and makes the policy better by one batch at a time."""

    def __init__(self, config: PPOConfig, policy: Policy, group: Group | None = None) -> None:
        self.config, self.policy, self.group = config, policy, group or Alone()
        self.optimizer = Adam(len(policy.network.params), config.optimizer.betas, config.optimizer.eps)
        self.kl_coeff = config.kl_coeff
        self.minibatches = Minibatches(config.seed, config.sgd_minibatch_size, config.shuffle_sequences, policy.window)

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Sample, then learn."""
        return training_step(self, workers, self.config.steps_per_iteration, timesteps_total)

    def update(self, batch: Batch, timesteps_total: int) -> dict[str, float]:
        """One iteration of learning from this learner's `[T, N]` steps; returns the statistics of all learners."""
        c, policy, network, group = self.config, self.policy, self.policy.network, self.group
        lr = scheduled(c.lr, c.lr_schedule, timesteps_total)
        entropy_coeff = scheduled(c.entropy_coeff, c.entropy_coeff_schedule, timesteps_total)
        clip_param = scheduled(c.clip_param, c.clip_param_schedule, timesteps_total)

        seen = seen_by(policy, batch)
        values, advantages = values_and_advantages(policy, batch, seen, c)
        targets = (advantages + values).reshape(-1)
        advantages = advantages.reshape(-1)
        actions = batch.actions.reshape(-1, batch.actions.shape[2])
        old_log_probs = batch.log_probs.reshape(-1)
        old_dist_inputs = batch.dist_inputs.reshape(-1, batch.dist_inputs.shape[2])

        totals = Totals()
        before = network.params.copy(), self.optimizer.get_state()
        passes = self.minibatches.of(batch.valid, group, batch.columns, seen.starts)
        for epoch, minibatches in zip(range(c.num_sgd_iter), passes, strict=False):
            rows = minibatches.rows
            inputs = seen.ordered(rows)
            epoch_actions, epoch_log_probs = actions.take(rows, axis=0), old_log_probs.take(rows)
            epoch_targets = targets.take(rows)
            epoch_advantages = minibatches.normalized(advantages.take(rows), group)
            epoch_dist_inputs = old_dist_inputs.take(rows, axis=0) if self.kl_coeff else None
            for part, count in minibatches:
                size = np.float32(1 / count)
                outputs, predicted, tape = network.forward(inputs(part))
                now = policy.distribution.evaluate(
                    outputs, epoch_actions[part], None if epoch_dist_inputs is None else epoch_dist_inputs[part]
                )

                # Surrogate: min(r A, clip(r) A). Where the clipped branch is the smaller one, nothing moves it.
                log_ratio = now.log_prob - epoch_log_probs[part]
                ratio = np.exp(np.minimum(log_ratio, 20))  # finite, however far the policy went
                advantage = epoch_advantages[part]
                gain = ratio * advantage
                clipped = np.minimum(np.maximum(ratio, 1 - clip_param), 1 + clip_param) * advantage
                d_log_prob = gain * (gain <= clipped) * -size

                error = predicted - epoch_targets[part] if c.use_critic else np.zeros_like(predicted)
                d_values = error * (2 * c.vf_loss_coeff * size)
                if c.vf_clip_param is not None:
                    d_values *= error * error <= c.vf_clip_param

                d_outputs = policy.distribution.gradient(
                    now, d_log_prob, -entropy_coeff * size, self.kl_coeff * size if self.kl_coeff else 0.0
                )
                gradient = group.sum(network.vjp(tape, d_outputs, d_values))
                norm = sqrt(np.dot(gradient, gradient))
                if not isfinite(norm):
                    totals.refused += 1
                    continue
                if c.grad_clip is not None and norm > c.grad_clip:
                    gradient *= c.grad_clip / (norm + 1e-6)
                self.optimizer.step(network.params, gradient, lr)
                network.sync()
                if epoch == c.num_sgd_iter - 1:
                    totals.add(
                        policy_loss=-np.minimum(gain, clipped).sum() * size,
                        vf_loss=np.dot(error, error) * size,
                        entropy=now.entropy.sum() * size,
                        # Schulman's low-variance estimate of KL(old, new) where the exact one is not needed.
                        kl=((ratio - 1 - log_ratio) if now.kl is None else now.kl).sum() * size,
                        clip_fraction=np.count_nonzero(gain > clipped) * size,
                        grad_gnorm=norm / group.size,
                    )

        if totals.refused and not self._is_sound(seen):
            # Too long a step has thrown the weights out of all bounds: no later gradient could bring them back.
            network.params[:] = before[0]
            network.sync()
            self.optimizer.set_state(before[1])
            log.warning("learning went out of bounds (lr %g): the weights of the iteration before are kept", lr)

        stats = totals.means(group)
        stats["total_loss"] = (
            stats["policy_loss"]
            + c.vf_loss_coeff * stats["vf_loss"]
            - entropy_coeff * stats["entropy"]
            + self.kl_coeff * stats["kl"]
        )
        valid = batch.valid.reshape(-1)
        stats["vf_explained_var"] = explained_variance(values.reshape(-1)[valid], targets[valid], group)
        stats |= {"cur_lr": lr, "cur_kl_coeff": self.kl_coeff, "entropy_coeff": entropy_coeff, "clip_param": clip_param}
        self._adapt_kl_coeff(stats["kl"])
        policy.learn_filter(batch, group.sum)
        return stats

    def get_state(self) -> State:
        """Optimiser, KL coefficient and the count of passes, from which minibatches follow."""
        optimizer = self.optimizer.get_state()
        return State(
            {"kl_coeff": self.kl_coeff, "passes": self.minibatches.passes, "optimizer": optimizer.values},
            {f"optimizer.{name}": array for name, array in optimizer.arrays.items()},
        )

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.kl_coeff = float(state.values["kl_coeff"])
        self.minibatches.passes = int(state.values["passes"])
        arrays = {name: state.arrays[f"optimizer.{name}"] for name in ("m", "v")}
        self.optimizer.set_state(State(state.values["optimizer"], arrays))

    def _is_sound(self, seen: Seen) -> bool:
        """Whether the network still gives finite outputs and values for what was seen."""
        wrong = 0
        for inputs in islice(seen.chunks(256), 1):
            outputs, values, _ = self.policy.network.forward(inputs)
            wrong = int(np.count_nonzero(~np.isfinite(outputs)) + np.count_nonzero(~np.isfinite(values)))
        return not self.group.sum(np.array([wrong])).any()

    def _adapt_kl_coeff(self, kl: float) -> None:
        if kl > 2 * self.config.kl_target:
            self.kl_coeff *= 1.5
        elif kl < 0.5 * self.config.kl_target:
            self.kl_coeff *= 0.5


class Totals:
    """Sums of the statistics of the last pass over a batch."""

    def __init__(self) -> None:
        self.count = 0
        self.refused = 0
        self._sums: dict[str, float] = {}

    def add(self, **stats: Any) -> None:
        """Count one minibatch."""
        self.count += 1
        for name, value in stats.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def means(self, group: Group) -> dict[str, float]:
        """The mean of each statistic, and how many minibatches were refused because their gradient was not finite."""
        names = ("policy_loss", "vf_loss", "entropy", "kl", "clip_fraction", "grad_gnorm")
        sums = group.sum(np.array([self._sums.get(name, 0.0) for name in names]))
        means = {name: float(total) / max(self.count, 1) for name, total in zip(names, sums, strict=True)}
        return {**means, "refused_minibatches": float(self.refused)}
