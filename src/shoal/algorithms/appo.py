"""Asynchronous proximal policy optimisation: PPO from fragments of any age (Espeholt et al. 2018, Hilton et al. 2022).

Workers never wait for each other. Whoever has finished a fragment gets the newest weights and begins the next, while
the learner learns. So three policies meet: mu, which sampled a step some updates ago; pi, from which this update
starts; and pi_theta, which it makes of it. As in PPO, the ratio to the policy at the start is held near 1, and what the
age of a step has made wrong is corrected by weights that are clipped:

    maximise   mean of  rho min(r A, clip(r, 1 - eps, 1 + eps) A)  -  c1 (V(s) - v)^2  +  c2 entropy
    with       r = pi_theta(a|s) / pi(a|s),   rho = min(pi(a|s) / mu(a|s), `vtrace_clip_pg_rho_threshold`)

The advantages A and the targets v are V-trace's (`data/returns.py`). Where mu is pi, as without workers, all weights
are 1 and this is PPO.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from shoal.algorithms.network_inputs import BatchInputs, final_inputs
from shoal.algorithms.on_policy import values_of
from shoal.algorithms.ppo import BatchSteps, PPOLearner
from shoal.config.appo import APPOConfig
from shoal.data.batch import Batch, Sample, Step, concatenate
from shoal.data.returns import successor_values, vtrace
from shoal.data.state import State
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers, check_usable

LOOK_EVERY_S = 0.005  # at who has finished meanwhile: often enough that nobody rests for long, and cheap

MOST_WAITING = 0.5  # of a batch, while the learner learns


class APPOLearner(PPOLearner):
    """The learner: takes fragments as they are finished, and keeps the workers busy while it learns."""

    config: APPOConfig

    def __init__(self, config: APPOConfig, policy: Policy, group: Group | None = None) -> None:
        super().__init__(config, policy, group)
        self.version = 0  # of the weights: the number of updates here so far
        self.arrived: list[Sample] = []  # fragments that are not learned from yet
        self.mean_rho = 1.0
        self._workers: Workers | None = None  # that sample while this learns
        self._looked_at = 0.0

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Take what is finished until it makes up a batch, then learn from it while the workers go on."""
        self._workers = workers
        self._begin(workers)
        while self._has_room() or self._must_wait(workers):
            self._take(workers, wait=True)
            if self._has_room():
                self._begin(workers)
        samples, self.arrived = self.arrived, []
        samples = [replace(sample, staleness=self.version - sample.weights_version) for sample in samples]
        check_usable(*samples)
        self._begin(workers)
        start = perf_counter()
        batch = replace(concatenate([sample.batch for sample in samples]), columns=None)
        stats = self.update(batch, timesteps_total)
        self.version += 1
        steps = sum(sample.num_steps for sample in samples)
        stats["staleness_mean"] = sum(sample.staleness * sample.num_steps for sample in samples) / steps
        stats["mean_rho"] = self.mean_rho
        return Step.from_samples(samples, stats, perf_counter() - start)

    def estimates(self, batch: Batch, inputs: BatchInputs) -> tuple[Array, BatchSteps]:
        """Values `[T, N]` by the present weights, and of each step V-trace's advantage, target and weight."""
        c, policy = self.config, self.policy
        outputs, values = self._judged(batch, inputs)
        actions = batch.actions.reshape(-1, batch.actions.shape[2])
        log_probs = policy.distribution.evaluate(outputs, actions).log_prob.reshape(values.shape)
        ratios = np.exp(np.minimum(log_probs - batch.log_probs, 20))  # finite, however far apart the policies are
        ratios[~batch.valid] = 1
        final_values = np.zeros(len(batch.final_at), np.float32)
        if c.use_critic:
            final_values = values_of(policy, final_inputs(policy, batch).chunks())
        following = successor_values(values, final_values, batch.final_at)
        lambda_ = c.lambda_ if c.use_gae else 1.0
        rewards, ends = self.rewards.divided(batch), (batch.terminated, batch.truncated)
        clip_rho = c.vtrace_clip_rho_threshold
        targets, advantages = vtrace(rewards, values, following, *ends, ratios, c.gamma, lambda_, clip_rho)
        weights = np.minimum(ratios, np.float32(c.vtrace_clip_pg_rho_threshold)).astype(np.float32)
        self.mean_rho = float(weights[batch.valid].mean())
        steps = BatchSteps.from_batch(batch, advantages, targets)
        return values, steps._replace(log_probs=log_probs.reshape(-1), dist_inputs=outputs, weights=weights.reshape(-1))

    def after_minibatch(self) -> None:
        """Let whoever has finished meanwhile begin the next fragment, unless half a batch is waiting already.

        Then learning is what takes time, and more would only grow old.
        """
        now = perf_counter()
        if self._workers is None or now - self._looked_at < LOOK_EVERY_S or not self._has_room(MOST_WAITING):
            return
        self._looked_at = now
        self._take(self._workers, wait=False)
        if self._has_room(MOST_WAITING):
            self._begin(self._workers)

    def set_state(self, state: State) -> None:
        """Take over a saved learner; fragments that other weights have sampled are not learned from."""
        super().set_state(state)
        self.version += 1  # it only grows, so that nobody takes these weights for those of before
        self.arrived = []

    def _begin(self, workers: Workers) -> None:
        """Let all who rest begin a fragment with the weights of the last finished update."""
        c = self.config
        steps = c.fragment_length if c.worker_count else c.steps_per_iteration
        workers.begin_fragments(steps, self.version)

    def _take(self, workers: Workers, wait: bool) -> None:
        """Take what is finished; the scale of rewards sees each environment's steps in their order."""
        for sample in workers.finished_fragments(wait):
            self.rewards.remembered(sample.batch, self.config.num_envs)
            self.arrived.append(sample)

    def _has_room(self, share: float = 1.0) -> bool:
        """Whether what has arrived makes up no batch yet, or less than a share of one.

        Steps that are no transitions count, for they took time.
        """
        rows = sum(sample.batch.valid.size for sample in self.arrived)
        return rows < share * self.config.steps_per_iteration * self.config.num_envs

    def _must_wait(self, workers: Workers) -> bool:
        """Whether a fragment that is not finished would be older than `max_staleness` after one more update."""
        oldest = workers.oldest_pending_version
        return oldest is not None and self.version - oldest >= self.config.max_staleness

    def _judged(self, batch: Batch, inputs: BatchInputs) -> tuple[Array, Array]:
        """What the present network makes of every step: outputs `[T * N, K]` and values `[T, N]`."""
        network, shape = self.policy.network, batch.rewards.shape
        outputs = np.zeros((batch.valid.size, network.num_outputs), np.float32)
        values = np.zeros(batch.valid.size, np.float32)
        rows = np.arange(batch.valid.size)[inputs.order]
        begin = 0
        for chunk in inputs.chunks():
            found, valued, _ = network.forward(chunk)
            part = rows[begin : begin + len(found)]
            outputs[part] = found
            if self.config.use_critic:
                values[part] = valued
            begin += len(found)
        return outputs, values.reshape(shape)
