"""Deep Q-learning (Mnih et al. 2015) with double and dueling Q, multi-step returns and prioritised replay.

The network's outputs are the actions' advantages A and its value head is V. With `dueling` Q = V + A - mean A, else
Q = A and the value head rests. Where actions are masked, best and mean are those of the actions that are allowed. The
loss is written as its gradient in output space, which the network pulls back.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from shoal.algorithms.off_policy import OffPolicyLearner, UpdateStatistics
from shoal.algorithms.optimizer import Optimizer
from shoal.config.dqn import DQNConfig
from shoal.data.replay import DrawnTransitions, Transitions
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.models.exploration import EpsilonGreedy
from shoal.models.masked import allowed_of
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.parallel.group import Group


class DQNLearner(OffPolicyLearner):
    """The learner: owns replay, target network and optimiser, and learns between short fragments of experience."""

    config: DQNConfig

    def __init__(self, config: DQNConfig, policy: Policy, group: Group | None = None) -> None:
        super().__init__(config, policy, group)
        self.masked = policy.obs_spec.mask is not None
        self.exploration = policy.distribution if isinstance(policy.distribution, EpsilonGreedy) else None
        self.optimizer = Optimizer(policy.network, config, clips_apart=False)  # one loss moves all of the network
        self.target = policy.network.params.copy()
        self.target_timestep = 0  # of the last copy into `target`
        self.num_target_updates = 0

    def explore(self, timesteps: int) -> None:
        """Let epsilon fall."""
        if self.exploration is not None and not self.exploration.per_env:
            self.exploration.epsilon = scheduled(1.0, self.exploration.schedule, timesteps)

    def guarded(self) -> AbstractContextManager[None]:
        """See `Optimizer`."""
        return self.optimizer.guarded(self._is_sound, self.target)

    def statistics(self) -> dict[str, float]:
        """See `OffPolicyLearner`."""
        stats = {
            "refused_minibatches": float(self.optimizer.refused),
            "num_target_updates": float(self.num_target_updates),
        }
        if self.exploration is not None:
            stats["cur_epsilon"] = self.exploration.epsilon
        return stats

    def learn(self, updates: int, timesteps: int, totals: UpdateStatistics) -> None:
        """See `OffPolicyLearner`; the target network is copied before, where that is due."""
        if timesteps - self.target_timestep >= self.config.target_network_update_freq:
            self.target[:] = self.policy.network.params
            self.target_timestep = timesteps
            self.num_target_updates += 1
        super().learn(updates, timesteps, totals)

    def update(self, drawn: DrawnTransitions, lr: float, totals: UpdateStatistics) -> Array:
        """One step of the optimiser for each `train_batch_size` of the transitions; returns their errors."""
        c, network = self.config, self.policy.network
        size, scale = c.train_batch_size, np.float32(1 / c.train_batch_size)
        old = drawn.transitions
        returns = old.returns / np.float32(self.rewards.divisor)
        inputs, next_inputs = self.policy.encoder(old.obs), self.policy.encoder(old.next_obs)
        next_q = self._target_q(next_inputs)
        targets = returns + old.discounts * next_q.max(axis=1)
        grad_gnorm = 0.0
        errors: Array = np.empty_like(targets)
        chosen_q: Array = np.empty_like(targets)
        rows = np.arange(size)
        num_actions = next_q.shape[1]
        d_outputs, d_values = np.zeros((size, num_actions), np.float32), np.zeros(size, np.float32)
        for begin in range(0, len(targets), size):
            part = slice(begin, begin + size)
            if c.double_q:
                best = network.act(tuple(x[part] for x in next_inputs)).argmax(axis=1)
                targets[part] = returns[part] + old.discounts[part] * next_q[part][rows, best]
            outputs, values, tape = network.forward(tuple(x[part] for x in inputs))
            taken = rows, old.actions[part]
            q = outputs[taken]
            if c.dueling:
                mean, share = self._mean(outputs)
                q = q + values - mean
            error = np.subtract(q, targets[part], out=errors[part])
            chosen_q[part] = q

            # The slope of e^2 / 2 is e; of Huber's loss, e cut at +-1.
            d_q = error * scale if drawn.weights is None else error * (drawn.weights[part] * scale)
            if c.td_error_loss_fn == "huber":
                d_q /= np.maximum(np.abs(error), 1)
            if c.dueling:
                d_values = d_q
                d_outputs[:] = d_q[:, None] * -share
                d_outputs[taken] += d_q
            else:
                d_outputs[:] = 0
                d_outputs[taken] = d_q
            norm = self.optimizer.step(network.vjp(tape, d_outputs, d_values), lr)
            if norm is None:
                error[:] = 0
            else:
                grad_gnorm += norm
        magnitudes = np.abs(errors)
        reach = magnitudes
        if c.td_error_loss_fn == "huber":
            reach = np.minimum(magnitudes, 1)
        losses: Array = reach * (magnitudes - np.float32(0.5) * reach)
        if drawn.weights is not None:
            losses = losses * drawn.weights
        totals.add(
            len(targets) // size,
            total_loss=losses.sum() / size,
            mean_q=chosen_q.sum() / size,
            mean_td_error=magnitudes.sum() / size,
            grad_gnorm=grad_gnorm,
        )
        return errors

    def errors_of(self, transitions: Transitions) -> Array:
        """See `OffPolicyLearner`."""
        c, network, rows = self.config, self.policy.network, np.arange(len(transitions.returns))
        inputs, next_inputs = self.policy.encoder(transitions.obs), self.policy.encoder(transitions.next_obs)
        next_q = self._target_q(next_inputs)
        best = next_q.argmax(axis=1)
        if c.double_q:
            best = network.act(next_inputs).argmax(axis=1)
        returns = transitions.returns / np.float32(self.rewards.divisor)
        targets = returns + transitions.discounts * next_q[rows, best]
        outputs, values, _ = network.forward(inputs)
        q = outputs[rows, transitions.actions]
        if c.dueling:
            q = q + values - self._mean(outputs)[0]
        return np.asarray(np.abs(q - targets))

    def get_state(self) -> State:
        """Optimiser, target network, counters and replay; of replay, views that one more iteration leaves alone."""
        own = State.of(
            target_timestep=self.target_timestep,
            num_target_updates=self.num_target_updates,
            target=self.target.copy(),
            optimizer=self.optimizer.get_state(),
        )
        return own.joined(super().get_state())

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        super().set_state(state)
        self.target_timestep = int(state.values["target_timestep"])
        self.num_target_updates = int(state.values["num_target_updates"])
        self.target[:] = state.arrays["target"]
        self.optimizer.set_state(state.part("optimizer"))

    def _target_q(self, inputs: Inputs) -> Array:
        """Values `[B, A]` of all actions by the target network, which is the same network with older parameters."""
        network = self.policy.network
        now = network.params.copy()
        try:
            network.params[:] = self.target
            network.sync()
            if self.config.dueling:
                outputs, values, _ = network.forward(inputs)
                q = np.asarray(outputs + (values - self._mean(outputs)[0])[:, None])
            else:
                outputs = q = network.act(inputs).copy()
            if self.masked:
                q[~allowed_of(outputs).any(axis=1)] = 0  # an episode cut where nothing could be done
            return q
        finally:
            network.params[:] = now
            network.sync()

    def _mean(self, outputs: Array) -> tuple[Array, Array | np.float32]:
        """The mean advantage `[B]` of the actions that are allowed, and the share of each action in it."""
        if not self.masked:
            return outputs.mean(axis=1), np.float32(1 / outputs.shape[1])
        allowed = allowed_of(outputs)
        share: Array = allowed / np.maximum(allowed.sum(axis=1, keepdims=True, dtype=np.float32), np.float32(1))
        return np.einsum("ij,ij->i", np.where(allowed, outputs, np.float32(0)), share), share

    def _is_sound(self) -> bool:
        """Whether the network still gives finite values for what was seen."""
        inputs = self.policy.encoder(self.replay.draw(1, self.config.train_batch_size).transitions.obs)
        outputs, values, _ = self.policy.network.forward(inputs)
        return bool(np.isfinite(outputs).all() and np.isfinite(values).all())
