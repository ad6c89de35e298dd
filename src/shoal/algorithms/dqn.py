"""Deep Q-learning (Mnih et al. 2015) with double and dueling Q, multi-step returns and prioritised replay.

The network's outputs are the actions' advantages A and its value head is V. With `dueling` Q = V + A - mean A, else
Q = A and the value head rests. Where actions are masked, best and mean are those of the actions that are allowed. The
loss is written as its gradient in output space, which the network pulls back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from shoal.algorithms.optimizer import Optimizer
from shoal.algorithms.rewards import LearnedRewards
from shoal.config.dqn import DQNConfig
from shoal.data.batch import Batch, SampleSummary, Step
from shoal.data.replay import DrawnTransitions, Priorities, Replay, bytes_per_transition, transitions_of
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.errors import ConfigError
from shoal.machine.memory import available_memory, bytes_text
from shoal.models.exploration import EpsilonGreedy
from shoal.models.masked import allowed_of
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group
from shoal.parallel.workers import Workers, check_usable

log = logging.getLogger("shoal")

DRAWN_UPDATES = 16  # the most minibatches that are drawn at once, with one pass of the target network for all
DRAWN_BYTES = 32 << 20


class DQNLearner:
    """The learner: owns replay, target network and optimiser, and learns between short fragments of experience."""

    def __init__(self, config: DQNConfig, policy: Policy, group: Group | None = None) -> None:
        assert (group or Alone()).size == 1
        self.config, self.policy = config, policy
        self.masked = policy.obs_spec.mask is not None
        self.exploration = policy.distribution if isinstance(policy.distribution, EpsilonGreedy) else None
        self.optimizer = Optimizer(policy.network, config, clips_apart=False)  # one loss moves all of the network
        self.rewards = LearnedRewards(config)
        self.replay = _replay(config, policy)
        self.target = policy.network.params.copy()
        self.target_timestep = 0  # of the last copy into `target`
        self.num_target_updates = 0
        self.timesteps_limit: float | None = None  # environment steps in all, at which an iteration ends early
        self.owed = 0.0  # transitions that are still to be learned from, of those that `training_intensity` asks for

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Rounds of: sample a fragment, remember it, learn from replay."""
        c = self.config
        samples: list[SampleSummary] = []
        learn_time = 0.0
        totals = UpdateStatistics()
        timesteps = timesteps_total
        with self.optimizer.guarded(self._is_sound, self.target):
            for _ in range(c.rounds_per_iteration):
                if self.exploration is not None and not self.exploration.per_env:
                    self.exploration.epsilon = scheduled(1.0, self.exploration.schedule, timesteps)
                sample = workers.sample(c.fragment_length)
                start = perf_counter()
                new = self._remember(sample.batch)
                timesteps += new
                if timesteps >= c.learning_starts and len(self.replay):
                    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                        self.learn(self._updates_for(new), timesteps, totals)
                samples.append(sample.summary)
                learn_time += perf_counter() - start
                if self.timesteps_limit is not None and timesteps >= self.timesteps_limit:
                    break
            check_usable(*samples)
        stats = {
            "num_updates": float(totals.updates),
            "refused_minibatches": float(self.optimizer.refused),
            **totals.means(self.rewards.divisor),
            "cur_lr": scheduled(c.lr, c.lr_schedule, timesteps),
            "num_target_updates": float(self.num_target_updates),
            "reward_scale": self.rewards.divisor,
            "replay_size": float(len(self.replay)),
        }
        if self.exploration is not None:
            stats["cur_epsilon"] = self.exploration.epsilon
        return Step.from_samples(samples, stats, learn_time)

    def learn(self, updates: int, timesteps: int, totals: UpdateStatistics) -> None:
        """So many updates, each from a minibatch of replayed transitions."""
        c = self.config
        if timesteps - self.target_timestep >= c.target_network_update_freq:
            self.target[:] = self.policy.network.params
            self.target_timestep = timesteps
            self.num_target_updates += 1
        lr = scheduled(c.lr, c.lr_schedule, timesteps)
        for count in self._drawn_at_once(updates):
            drawn = self.replay.draw(count, c.train_batch_size)
            errors = self.update(drawn, lr, totals)
            self.replay.learned(drawn.places, errors)

    def update(self, drawn: DrawnTransitions, lr: float, totals: UpdateStatistics) -> Array:
        """One step of the optimiser for each `train_batch_size` of the transitions; returns their errors."""
        c, network = self.config, self.policy.network
        size, scale = c.train_batch_size, np.float32(1 / c.train_batch_size)
        old = drawn.transitions
        returns = old.returns / np.float32(self.rewards.divisor)
        inputs, next_inputs = self.policy.encoder(old.obs), self.policy.encoder(old.next_obs)
        next_q = self._target_q(next_inputs)
        targets = returns + old.discounts * next_q.max(axis=1)
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
                totals.grad_gnorm += norm
        magnitudes = np.abs(errors)
        reach = magnitudes
        if c.td_error_loss_fn == "huber":
            reach = np.minimum(magnitudes, 1)
        losses: Array = reach * (magnitudes - np.float32(0.5) * reach)
        if drawn.weights is not None:
            losses = losses * drawn.weights
        totals.add(size, losses, chosen_q, magnitudes)
        return errors

    def get_state(self) -> State:
        """Optimiser, target network, counters and replay; of replay, views that one more iteration leaves alone."""
        return State.of(
            target_timestep=self.target_timestep,
            num_target_updates=self.num_target_updates,
            owed=self.owed,
            target=self.target.copy(),
            optimizer=self.optimizer.get_state(),
            rewards=self.rewards.get_state(),
            replay=self.replay.get_state(),
        )

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.target_timestep = int(state.values["target_timestep"])
        self.num_target_updates = int(state.values["num_target_updates"])
        self.owed = float(state.values["owed"])
        self.target[:] = state.arrays["target"]
        self.optimizer.set_state(state.part("optimizer"))
        self.rewards.set_state(state.part("rewards") if "rewards" in state.values else None)
        self.replay.set_state(state.part("replay"))

    def _remember(self, batch: Batch) -> int:
        """Put a fragment into replay, and let the filter see it; returns the number of its transitions."""
        c = self.config
        new = transitions_of(batch, self.rewards.unscaled(batch), c.gamma, c.n_step)
        self.replay.add(new)
        self.policy.learn_filter(batch)
        return len(new.actions)

    def _updates_for(self, transitions: int) -> int:
        """The number of updates that are due after so many new transitions; what is left over is owed."""
        self.owed += transitions * self.config.training_intensity
        updates = int(self.owed / self.config.train_batch_size)
        self.owed -= updates * self.config.train_batch_size
        return updates

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

    def _drawn_at_once(self, updates: int) -> Iterator[int]:
        """`updates` as a sum of numbers of minibatches that may lie in memory together."""
        c, spec = self.config, self.policy.obs_spec
        size = c.train_batch_size * bytes_per_transition(spec.shapes, spec.dtypes, False)
        most = max(1, min(DRAWN_UPDATES, DRAWN_BYTES // size))
        while updates > 0:
            yield min(updates, most)
            updates -= most

    def _is_sound(self) -> bool:
        """Whether the network still gives finite values for what was seen."""
        inputs = self.policy.encoder(self.replay.draw(1, self.config.train_batch_size).transitions.obs)
        outputs, values, _ = self.policy.network.forward(inputs)
        return bool(np.isfinite(outputs).all() and np.isfinite(values).all())


@dataclass
class UpdateStatistics:
    """Sums over the updates of an iteration."""

    updates: int = 0
    loss: float = 0.0
    q: float = 0.0
    error: float = 0.0
    grad_gnorm: float = 0.0

    def add(self, size: int, losses: Array, q: Array, magnitudes: Array) -> None:
        """Count the updates of one draw, of `size` transitions each."""
        self.updates += len(q) // size
        self.loss += float(losses.sum()) / size
        self.q += float(q.sum()) / size
        self.error += float(magnitudes.sum()) / size

    def means(self, unit: float = 1.0) -> dict[str, float]:
        """The mean of each statistic over the updates; what no update has said is left out.

        Values are told in the environment's rewards, of which `unit` is one of those that were learned from.
        """
        if not self.updates:
            return {}
        return {
            "total_loss": self.loss / self.updates,
            "mean_q": self.q * unit / self.updates,
            "mean_td_error": self.error * unit / self.updates,
            "grad_gnorm": self.grad_gnorm / self.updates,
        }


def _replay(config: DQNConfig, policy: Policy) -> Replay:
    """An empty replay, if the memory for it is there."""
    asked, spec = config.replay_buffer_config, policy.obs_spec
    slack = config.steps_per_iteration * config.num_envs
    each = bytes_per_transition(spec.shapes, spec.dtypes, asked.prioritized_replay)
    needed, there = (asked.capacity + slack) * each, available_memory()
    arithmetic = f"({asked.capacity:,} + {slack:,} of one iteration) x {each:,} bytes = {bytes_text(needed)}"
    log.info("replay: %s of %s available", arithmetic, bytes_text(there))
    if needed > there:
        raise ConfigError(
            f"config.replay_buffer_config.capacity: {arithmetic}, and {bytes_text(there)} are available; "
            f"use at most {max(there // each - slack, 1)}"
        )
    priorities = None
    if asked.prioritized_replay:
        priorities = Priorities(
            asked.prioritized_replay_alpha, asked.prioritized_replay_beta, asked.prioritized_replay_eps
        )
    rng = generator(config.seed, Stream.REPLAY)
    return Replay(spec.shapes, spec.dtypes, asked.capacity, slack, priorities, rng)
