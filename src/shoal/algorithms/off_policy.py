"""What learners from replay have in common: rounds of a short fragment of experience and of updates from memory."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from time import perf_counter

import numpy as np

from shoal.algorithms.rewards import LearnedRewards
from shoal.config.off_policy import OffPolicyConfig
from shoal.data.batch import Batch, SampleSummary, Step
from shoal.data.replay import (
    DrawnTransitions,
    Priorities,
    Replay,
    bytes_per_transition,
    stored_action_size,
    transitions_of,
)
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.errors import ConfigError
from shoal.machine.memory import available_memory, bytes_text
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group
from shoal.parallel.workers import Workers, check_usable

log = logging.getLogger("shoal")

DRAWN_UPDATES = 16  # the most minibatches that are drawn at once
DRAWN_BYTES = 32 << 20


class UpdateStatistics:
    """Sums over the updates of an iteration, by the names of results."""

    def __init__(self) -> None:
        self.updates = 0
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, updates: int, **sums: float) -> None:
        """Count so many updates, and what they add up to."""
        self.updates += updates
        for name, value in sums.items():
            self._sums[name] += float(value)

    def means(self, unit: float = 1.0) -> dict[str, float]:
        """The mean of each statistic over the updates; what no update has said is left out.

        Values are told in the environment's rewards, of which `unit` is one of those that were learned from.
        """
        if not self.updates:
            return {}
        means = {name: value / self.updates for name, value in self._sums.items()}
        for name in IN_REWARDS & means.keys():
            means[name] *= unit
        return means


IN_REWARDS = {"mean_q", "mean_td_error"}
"""Names of statistics that are in the unit of rewards."""


class OffPolicyLearner:
    """A learner that owns replay, and learns from it between short fragments of experience."""

    config: OffPolicyConfig

    def __init__(self, config: OffPolicyConfig, policy: Policy, group: Group | None = None) -> None:
        assert (group or Alone()).size == 1
        self.config, self.policy = config, policy
        self.rewards = LearnedRewards(config)
        self.replay = replay_for(config, policy)
        self.timesteps_limit: float | None = None  # environment steps in all, at which an iteration ends early
        self.owed = 0.0  # transitions that are still to be learned from, of those that `training_intensity` asks for

    def update(self, drawn: DrawnTransitions, lr: float, totals: UpdateStatistics) -> Array:
        """An update for each `train_batch_size` of the transitions; returns the values' errors, by magnitude or not."""
        raise NotImplementedError

    def learn(self, updates: int, timesteps: int, totals: UpdateStatistics) -> None:
        """So many updates, each from a minibatch of replayed transitions."""
        c = self.config
        lr = scheduled(c.lr, c.lr_schedule, timesteps)
        for count in self._drawn_at_once(updates):
            drawn = self.replay.draw(count, c.train_batch_size)
            errors = self.update(drawn, lr, totals)
            self.replay.learned(drawn.places, errors)

    def explore(self, timesteps: int) -> None:
        """Set how the next fragment is explored."""

    def guarded(self) -> AbstractContextManager[None]:
        """Takes back an iteration of updates that has thrown the networks out of all bounds."""
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """What an iteration reports beside the means over its updates."""
        raise NotImplementedError

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Rounds of: sample a fragment, remember it, learn from replay."""
        samples: list[SampleSummary] = []
        timesteps, learn_time = timesteps_total, 0.0
        learning = self.learning(timesteps_total)
        next(learning)
        for _ in range(self.config.rounds_per_iteration):
            self.explore(timesteps)
            sample = workers.sample(self.config.fragment_length)
            start = perf_counter()
            learning.send(sample.batch)
            samples.append(sample.summary)
            timesteps += sample.num_steps
            learn_time += perf_counter() - start
            if self.timesteps_limit is not None and timesteps >= self.timesteps_limit:
                break
        check_usable(*samples)
        return Step.from_samples(samples, ended(learning), learn_time)

    def learning(self, timesteps_total: int) -> Generator[None, Batch | None, dict[str, float]]:
        """An iteration of learning, to which fragments are sent one by one, and at last None; gives the statistics."""
        c = self.config
        totals = UpdateStatistics()
        timesteps = timesteps_total
        with self.guarded():
            while (batch := (yield)) is not None:
                new = self._remember(batch)
                timesteps += new
                if timesteps >= c.learning_starts and len(self.replay):
                    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                        self.learn(self._updates_for(new), timesteps, totals)
        stats = {
            "num_updates": float(totals.updates),
            **totals.means(self.rewards.divisor),
            "cur_lr": scheduled(c.lr, c.lr_schedule, timesteps),
            "reward_scale": self.rewards.divisor,
            "replay_size": float(len(self.replay)),
            **self.statistics(),
        }
        return stats

    def get_state(self) -> State:
        """Rewards, counters and replay; of replay, views that one more iteration leaves alone."""
        return State.of(owed=self.owed, rewards=self.rewards.get_state(), replay=self.replay.get_state())

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.owed = float(state.values["owed"])
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

    def _drawn_at_once(self, updates: int) -> Iterator[int]:
        """`updates` as a sum of numbers of minibatches that may lie in memory together."""
        c, spec = self.config, self.policy.obs_spec
        size = c.train_batch_size * bytes_per_transition(spec.shapes, spec.dtypes, False)
        most = max(1, min(DRAWN_UPDATES, DRAWN_BYTES // size))
        while updates > 0:
            yield min(updates, most)
            updates -= most


def ended(learning: Generator[None, Batch | None, dict[str, float]]) -> dict[str, float]:
    """End an iteration of learning; its statistics."""
    try:
        learning.send(None)
    except StopIteration as end:
        return dict(end.value)
    raise AssertionError("the iteration goes on")


def replay_for(config: OffPolicyConfig, policy: Policy) -> Replay:
    """An empty replay, if the memory for it is there."""
    asked, spec, actions = config.replay_buffer_config, policy.obs_spec, policy.action_spec
    slack = config.steps_per_iteration * config.num_rows
    size = stored_action_size(actions.size, actions.dtype)
    each = bytes_per_transition(spec.shapes, spec.dtypes, asked.prioritized_replay, size)
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
    return Replay(spec.shapes, spec.dtypes, asked.capacity, slack, priorities, rng, size)
