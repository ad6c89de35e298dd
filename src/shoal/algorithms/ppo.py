"""Proximal policy optimisation (Schulman et al. 2017), with the clipped surrogate and, if asked, the KL penalty.

The objective is written as its gradient in output space: how much a little more log-probability, entropy, KL or value
would change the loss for each sample. Distributions and networks pull that back to the parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import ceil, isfinite, sqrt
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.adam import Adam
from shoal.config.settings import PPOConfig
from shoal.data.batch import Batch, Sample
from shoal.data.returns import explained_variance, gae, scheduled, successor_values
from shoal.data.state import State
from shoal.envs.vector import describe
from shoal.errors import EnvError
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.parallel.workers import Workers

log = logging.getLogger("shoal")

CHUNK_ROWS, CHUNK_BYTES = 1024, 1 << 20  # the most of one forward pass where no derivative is wanted


class PPO:
    """The learner: owns the optimiser, and makes the policy better by one batch at a time."""

    def __init__(self, config: PPOConfig, policy: Policy) -> None:
        self.config, self.policy = config, policy
        self.optimizer = Adam(len(policy.network.params), config.optimizer.betas, config.optimizer.eps)
        self.kl_coeff = config.kl_coeff
        self.rng = np.random.default_rng([config.seed, 2])

    def training_step(self, workers: Workers, timesteps_total: int) -> tuple[Sample, dict[str, float], float]:
        """Sample, then learn; returns the sample, the learner's statistics and the seconds spent on learning."""
        sample = workers.sample(self.config.steps_per_iteration)
        if not sample.batch.num_steps:
            causes = [describe(incident) for incident in sample.incidents[-1:]]
            raise EnvError("\n".join([*causes, "Not one step of the batch was good: there is nothing to learn from."]))
        start = perf_counter()
        stats = self.update(sample.batch, timesteps_total)
        return sample, stats, perf_counter() - start

    def update(self, batch: Batch, timesteps_total: int) -> dict[str, float]:
        """One iteration of learning from `[T, N]` steps; returns the learner's statistics."""
        c, policy = self.config, self.policy
        lr = scheduled(c.lr, c.lr_schedule, timesteps_total)
        entropy_coeff = scheduled(c.entropy_coeff, c.entropy_coeff_schedule, timesteps_total)

        inputs = policy.encoder(tuple(part.reshape(-1, *part.shape[2:]) for part in batch.obs))
        values, advantages = self._advantages(batch, inputs)
        targets = (advantages + values).reshape(-1)
        valid = batch.valid.reshape(-1)
        advantages = advantages.reshape(-1)
        actions = batch.actions.reshape(len(targets), -1)
        old_log_probs = batch.log_probs.reshape(-1)
        old_dist_inputs = batch.dist_inputs.reshape(len(targets), -1)

        totals = Totals()
        before = policy.network.params.copy(), self.optimizer.get_state()
        for epoch in range(c.num_sgd_iter):
            for rows in self._minibatches(batch):
                size = np.float32(1 / len(rows))
                outputs, predicted, tape = policy.network.forward(tuple(part.take(rows, axis=0) for part in inputs))
                now = policy.distribution.evaluate(
                    outputs,
                    actions.take(rows, axis=0),
                    old_dist_inputs.take(rows, axis=0) if self.kl_coeff else None,
                )

                # Surrogate: min(r A, clip(r) A). Where the clipped branch is the smaller one, nothing moves it.
                log_ratio = now.log_prob - old_log_probs[rows]
                ratio = np.exp(np.minimum(log_ratio, 20))  # finite, however far the policy went
                advantage = normalized(advantages[rows])
                gain = ratio * advantage
                clipped = np.minimum(np.maximum(ratio, 1 - c.clip_param), 1 + c.clip_param) * advantage
                d_log_prob = gain * (gain <= clipped) * -size

                error = predicted - targets[rows] if c.use_critic else np.zeros_like(predicted)
                d_values = error * (2 * c.vf_loss_coeff * size)
                if c.vf_clip_param is not None:
                    d_values *= error * error <= c.vf_clip_param

                d_outputs = policy.distribution.gradient(
                    now, d_log_prob, -entropy_coeff * size, self.kl_coeff * size if self.kl_coeff else 0.0
                )
                gradient = policy.network.vjp(tape, d_outputs, d_values)
                norm = sqrt(np.dot(gradient, gradient))
                if not isfinite(norm):
                    totals.refused += 1
                    continue
                if c.grad_clip is not None and norm > c.grad_clip:
                    gradient *= c.grad_clip / (norm + 1e-6)
                self.optimizer.step(policy.network.params, gradient, lr)
                policy.network.sync()
                if epoch == c.num_sgd_iter - 1:
                    totals.add(
                        policy_loss=-np.minimum(gain, clipped).mean(),
                        vf_loss=np.dot(error, error) * size,
                        entropy=now.entropy.mean(),
                        # Schulman's low-variance estimate of KL(old, new) where the exact one is not needed.
                        kl=(ratio - 1 - log_ratio).mean() if now.kl is None else now.kl.mean(),
                        clip_fraction=np.count_nonzero(gain > clipped) * size,
                        grad_gnorm=norm,
                    )

        if totals.refused and not self._is_sound(inputs):
            # Too long a step has thrown the weights out of all bounds: no later gradient could bring them back.
            policy.network.params[:] = before[0]
            policy.network.sync()
            self.optimizer.set_state(before[1])
            log.warning("learning went out of bounds (lr %g): the weights of the iteration before are kept", lr)

        stats = totals.means()
        stats["total_loss"] = (
            stats["policy_loss"]
            + c.vf_loss_coeff * stats["vf_loss"]
            - entropy_coeff * stats["entropy"]
            + self.kl_coeff * stats["kl"]
        )
        stats["vf_explained_var"] = explained_variance(values.reshape(-1)[valid], targets[valid])
        stats |= {"cur_lr": lr, "cur_kl_coeff": self.kl_coeff, "entropy_coeff": entropy_coeff}
        self._adapt_kl_coeff(stats["kl"])
        policy.learn_filter(batch)
        return stats

    def get_state(self) -> State:
        """Optimiser, KL coefficient and the stream of minibatches."""
        optimizer = self.optimizer.get_state()
        return State(
            {"kl_coeff": self.kl_coeff, "rng": self.rng.bit_generator.state, "optimizer": optimizer.values},
            {f"optimizer.{name}": array for name, array in optimizer.arrays.items()},
        )

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.kl_coeff = float(state.values["kl_coeff"])
        self.rng.bit_generator.state = state.values["rng"]
        arrays = {name: state.arrays[f"optimizer.{name}"] for name in ("m", "v")}
        self.optimizer.set_state(State(state.values["optimizer"], arrays))

    def _advantages(self, batch: Batch, inputs: Inputs) -> tuple[Array, Array]:
        """Values and advantages `[T, N]`, from one pass of the value net over the batch and its final observations."""
        c = self.config
        rewards = clipped_rewards(batch.rewards, c.clip_rewards)
        if c.use_critic:
            values = self._values(inputs).reshape(rewards.shape)
            final_values = self._values(self.policy.encoder(batch.final_obs))
        else:
            values, final_values = np.zeros_like(rewards), np.zeros(len(batch.final_at), np.float32)
        following = successor_values(values, final_values, batch.final_at)
        lambda_ = c.lambda_ if c.use_gae else 1.0
        return values, gae(rewards, values, following, batch.terminated, batch.truncated, c.gamma, lambda_)

    def _is_sound(self, inputs: Inputs) -> bool:
        """Whether the network still gives finite outputs and values for what was seen."""
        outputs, values, _ = self.policy.network.forward(tuple(part[:256] for part in inputs))
        return bool(np.isfinite(outputs).all() and np.isfinite(values).all())

    def _values(self, inputs: Inputs) -> Array:
        """Values in passes of bounded size, which stay in the cache and, with convolutions, in memory."""
        rows = len(inputs[0])
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES * rows // max(1, sum(part.nbytes for part in inputs))))
        chunks = (tuple(part[i : i + step] for part in inputs) for i in range(0, rows, step))
        return np.concatenate([np.zeros(0, np.float32), *(self.policy.network.values(c).copy() for c in chunks)])

    def _minibatches(self, batch: Batch) -> Iterator[NDArray[np.int64]]:
        """Rows of each minibatch of one epoch: each takes as evenly as it can from every environment's own time."""
        order = stratified_order(self.rng if self.config.shuffle_sequences else None, batch.valid)
        count = ceil(len(order) / self.config.sgd_minibatch_size)
        return iter(np.array_split(order, count))

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

    def means(self) -> dict[str, float]:
        """The mean of each statistic, and how many minibatches were refused because their gradient was not finite."""
        names = ("policy_loss", "vf_loss", "entropy", "kl", "clip_fraction", "grad_gnorm")
        means = {name: self._sums.get(name, 0.0) / max(self.count, 1) for name in names}
        return {**means, "refused_minibatches": float(self.refused)}


def stratified_order(rng: np.random.Generator | None, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """All valid rows of a flattened `[T, N]` batch, so that any stretch of it holds all environments equally often.

    Each environment's time is permuted by itself, and so is the order of environments; without `rng` nothing is.
    """
    steps, num_envs = valid.shape
    times = np.broadcast_to(np.arange(steps)[:, None], (steps, num_envs))
    envs = np.arange(num_envs)
    if rng is not None:
        times = rng.permuted(times, axis=0)
        envs = rng.permutation(num_envs)
    order: NDArray[np.int64] = (times * num_envs + np.arange(num_envs))[:, envs].reshape(-1)
    return order if valid.all() else order[valid.reshape(-1)[order]]


def normalized(x: Array) -> Array:
    """The numbers of one minibatch with mean 0 and standard deviation 1."""
    centred = x - x.sum() / np.float32(len(x))
    deviation = sqrt(float(np.dot(centred, centred)) / len(x))
    return np.asarray(centred / np.float32(deviation + 1e-8))


def clipped_rewards(rewards: Array, clip: bool | float | None) -> Array:
    """Rewards as the learner sees them: as they are, their signs (True), or cut at +-clip."""
    if clip is True:
        return np.sign(rewards)
    if not clip:
        return rewards
    return np.clip(rewards, -clip, clip)
