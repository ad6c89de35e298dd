"""What learners from replay have in common: rounds of a short fragment of experience and of updates from memory."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from shoal.algorithms.held_out import MOST, HeldOut
from shoal.algorithms.rewards import LearnedRewards
from shoal.config.off_policy import OffPolicyConfig
from shoal.data.batch import Batch, Sample, SampleSummary, Step
from shoal.data.frames import LEAST_LEFT, memory_of_frames
from shoal.data.replay import (
    DrawnTransitions,
    Priorities,
    Replay,
    Transitions,
    bytes_per_transition,
    drawn_bytes,
    shares_frames,
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
LOOK_EVERY_S = 0.02  # at workers, so that whoever has finished soon begins again
UPDATES_PER_LOOK = 16  # at what is held out

IsOver = Callable[[int, Sequence[SampleSummary]], bool]
"""Whether a run ends that has come so many steps far, with these samples in this iteration."""


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


@dataclass
class IterationProgress:
    """How far an iteration has come."""

    timesteps: int  # of the run
    samples: list[SampleSummary] = field(default_factory=list)
    totals: UpdateStatistics = field(default_factory=UpdateStatistics)
    learn_time_s: float = 0.0


class OffPolicyLearner:
    """A learner that owns replay, and learns from it between short fragments of experience."""

    config: OffPolicyConfig

    def __init__(self, config: OffPolicyConfig, policy: Policy, group: Group | None = None) -> None:
        assert (group or Alone()).size == 1
        self.config, self.policy = config, policy
        self.rewards = LearnedRewards(config)
        self.replay = replay_for(config, policy)
        self.is_over: IsOver | None = None  # whether the run ends with a fragment, and so its iteration early
        self.owed = 0.0  # transitions that are still to be learned from, of those that `training_intensity` asks for
        self.held_out = HeldOut() if config.training_intensity == "auto" else None
        self.updates = 0  # here so far, which is the version of the weights
        self._at_a_time = 1  # updates before workers are looked at again
        self._is_overfitted, self._next_look = False, 0

    def update(self, drawn: DrawnTransitions, lr: float, totals: UpdateStatistics) -> Array:
        """An update for each `train_batch_size` of the transitions; returns the values' errors, by magnitude or not."""
        raise NotImplementedError

    def errors_of(self, transitions: Transitions) -> Array:
        """The magnitudes `[B]` of the values' errors on transitions that are not learned from here."""
        raise NotImplementedError

    def learn(self, updates: int, timesteps: int, totals: UpdateStatistics) -> None:
        """So many updates, each from a minibatch of replayed transitions."""
        c = self.config
        lr = scheduled(c.lr, c.lr_schedule, timesteps)
        for count in self._drawn_at_once(updates):
            drawn = self.replay.draw(count, c.train_batch_size)
            errors = self.update(drawn, lr, totals)
            self.replay.learned(drawn.places, errors)
        self.updates += updates

    def explore(self, timesteps: int) -> None:
        """Set how the next fragment is explored."""

    def guarded(self) -> AbstractContextManager[None]:
        """Takes back an iteration of updates that has thrown the networks out of all bounds."""
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """What an iteration reports beside the means over its updates."""
        raise NotImplementedError

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Rounds of: sample a fragment, remember it, learn from replay; with `sample_async`, all side by side."""
        c = self.config
        done = IterationProgress(timesteps_total)
        with self.guarded():
            if c.fills_the_wait:
                self._learn_beside(workers, done)
            else:
                for _ in range(c.rounds_per_iteration):
                    self.explore(done.timesteps)
                    self._learn_from_sample(workers.sample(c.fragment_length), done)
                    if self.is_over is not None and self.is_over(done.timesteps, done.samples):
                        break
            check_usable(*done.samples)
        return Step.from_samples(done.samples, self.results(done, timesteps_total), done.learn_time_s)

    def results(self, done: IterationProgress, timesteps_before: int) -> dict[str, float]:
        """The statistics of an iteration that is over."""
        c, totals = self.config, done.totals
        stats = {
            "num_updates": float(totals.updates),
            **totals.means(self.rewards.divisor),
            "cur_lr": scheduled(c.lr, c.lr_schedule, done.timesteps),
            "reward_scale": self.rewards.divisor,
            "replay_size": float(len(self.replay)),
            "training_intensity": totals.updates * c.train_batch_size / max(done.timesteps - timesteps_before, 1),
            **self.statistics(),
        }
        if self.held_out is not None and self.held_out.ratio is not None:
            stats["overfit_ratio"] = self.held_out.ratio
        return stats

    def learn_from(self, batch: Batch, done: IterationProgress) -> None:
        """Remember a fragment, and make the updates that are due after it."""
        new = self._remember(batch)
        done.timesteps += new
        if self._has_begun(done.timesteps):
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                self.learn(self._updates_for(new), done.timesteps, done.totals)

    def get_state(self) -> State:
        """Rewards, counters and replay; of replay, views that one more iteration leaves alone."""
        parts = {"rewards": self.rewards.get_state(), "replay": self.replay.get_state()}
        if self.held_out is not None:
            parts["held_out"] = self.held_out.get_state()
        return State.of(owed=self.owed, **parts)

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.owed = float(state.values["owed"])
        self.updates += 1  # it only grows, so that nobody takes these weights for those of before
        self._is_overfitted, self._next_look = False, 0
        if self.held_out is not None and "held_out" in state.values:
            self.held_out.set_state(state.part("held_out"))
        self.rewards.set_state(state.part("rewards") if "rewards" in state.values else None)
        self.replay.set_state(state.part("replay"))

    def _learn_from_sample(self, sample: Sample, done: IterationProgress) -> None:
        """Learn from a fragment, and count what that took."""
        start = perf_counter()
        self.learn_from(sample.batch, done)
        done.samples.append(sample.summary)
        done.learn_time_s += perf_counter() - start

    def _learn_beside(self, workers: Workers, done: IterationProgress) -> None:
        """Remember what each worker has when it is finished, and learn while they go on; wait if nothing is due."""
        c = self.config
        wanted = done.timesteps + c.timesteps_per_iteration
        most_owed = c.least_intensity * c.fragment_length * c.num_rows + c.train_batch_size
        while done.timesteps < wanted and (self.is_over is None or not self.is_over(done.timesteps, done.samples)):
            self.explore(done.timesteps)
            if self.owed <= most_owed:  # else learning is what takes time, and is not left behind
                workers.begin_fragments(c.fragment_length, self.updates)
            start = perf_counter()
            due = 0
            if self._has_begun(done.timesteps):
                due = min(self._updates_due(), self._at_a_time)
            done.learn_time_s += perf_counter() - start
            finished = workers.finished_fragments(wait=not due)
            start = perf_counter()
            if finished and self._is_overfitted:
                self._next_look = self.updates  # what is new may be learned from
            for sample in finished:
                done.timesteps += self._remember(sample.batch)
                if self._has_begun(done.timesteps):
                    self.owed += sample.num_steps * c.least_intensity
                done.samples.append(replace(sample.summary, staleness=self.updates - sample.weights_version))
            if due:
                self._learn_a_little(due, done)
            done.learn_time_s += perf_counter() - start

    def _learn_a_little(self, updates: int, done: IterationProgress) -> None:
        """So many updates, and how many shall be made the next time, so that workers are looked at often enough."""
        start = perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            self.learn(updates, done.timesteps, done.totals)
        self.owed = max(self.owed - updates * self.config.train_batch_size, 0.0)
        each = (perf_counter() - start) / updates
        self._at_a_time = max(1, min(DRAWN_UPDATES, int(LOOK_EVERY_S / each)))

    def _updates_due(self) -> int:
        """How many updates may be made now without waiting for more experience.

        With `training_intensity: auto` there are more than those that are owed, as long as they do not overfit.
        """
        owed, most = int(self.owed / self.config.train_batch_size), self.config.max_overfit_ratio
        if owed or self.held_out is None:
            return owed
        if not self.held_out.can_tell:
            return UPDATES_PER_LOOK if most is None else 0
        if self.updates >= self._next_look:
            self.held_out.measure(self.replay, self.errors_of)
            self._is_overfitted = most is not None and self.held_out.least > most
            self._next_look = self.updates + UPDATES_PER_LOOK
        return 0 if self._is_overfitted else UPDATES_PER_LOOK

    def _has_begun(self, timesteps: int) -> bool:
        """Whether there is enough to learn from."""
        return timesteps >= self.config.learning_starts and len(self.replay) > 0

    def _remember(self, batch: Batch) -> int:
        """Put a fragment into replay, and let the filter see it; returns the number of its transitions."""
        c = self.config
        new = transitions_of(batch, self.rewards.remembered(batch, c.num_rows), c.gamma, c.n_step)
        count = len(new.actions)
        if self.held_out is not None:
            new = self.held_out.split(new)
        self.replay.add(new)
        self.policy.learn_filter(batch)
        return count

    def _updates_for(self, transitions: int) -> int:
        """The number of updates that are due after so many new transitions; what is left over is owed."""
        self.owed += transitions * self.config.least_intensity
        updates = int(self.owed / self.config.train_batch_size)
        self.owed -= updates * self.config.train_batch_size
        return updates

    def _drawn_at_once(self, updates: int) -> Iterator[int]:
        """`updates` as a sum of numbers of minibatches that may lie in memory together."""
        c, spec = self.config, self.policy.obs_spec
        size = c.train_batch_size * drawn_bytes(spec.shapes, spec.dtypes)
        most = max(1, min(DRAWN_UPDATES, DRAWN_BYTES // size))
        while updates > 0:
            yield min(updates, most)
            updates -= most


def replay_for(config: OffPolicyConfig, policy: Policy) -> Replay:
    """An empty replay, if the memory for it is there."""
    asked, spec, actions = config.replay_buffer_config, policy.obs_spec, policy.action_spec
    slack = config.steps_per_iteration * config.num_rows
    if config.fills_the_wait:  # whatever is finished when an iteration is long enough, and what was held out
        slack += config.fragment_length * config.num_rows + MOST
    size = stored_action_size(actions.size, actions.dtype)
    each = bytes_per_transition(spec.shapes, spec.dtypes, asked.prioritized_replay, size)
    needed, there, about = (asked.capacity + slack) * each, available_memory(), ""
    if shares_frames(spec.shapes, spec.dtypes):
        there = max(there + memory_of_frames() - LEAST_LEFT, 0)  # frames of a state to go on from are not needed twice
        about = "about "
    arithmetic = f"({asked.capacity:,} + {slack:,} of one iteration) x {about}{each:,} bytes = {bytes_text(needed)}"
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
