"""What BC and MARWIL have in common: recorded steps in place of sampled ones.

An iteration of the trainer is `train_batch_size` recorded steps, in minibatches: nobody samples, and the timesteps that
are counted are those that were learned from. Passes over the data go on from one iteration to the next. A pass is a
permutation of all steps that follows from the seed and its number alone, and every process that holds some of the
steps finds its share of each minibatch by itself; so one process and many of Ray Train's make the same steps, up to
rounding. The steps of a process are whole episodes (`Experience`), which returns need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.minibatches import Epoch, Minibatches
from shoal.algorithms.network_inputs import StepInputs
from shoal.algorithms.on_policy import is_sound
from shoal.algorithms.optimizer import Optimizer
from shoal.config.offline import OfflineConfig
from shoal.data.batch import Step
from shoal.data.experience import Experience, Integers
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.models.distributions import Evaluation
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Alone, Group


class Recordings(Protocol):
    """Where a learner finds its share of the recorded steps."""

    def share(self) -> tuple[Experience, int]:
        """The steps, and how many steps of all come before them."""


@dataclass(frozen=True)
class Minibatch:
    """Some of this learner's steps, and what the network makes of them."""

    rows: Integers  # [B], among the learner's own steps
    size: np.float32  # 1 / the number of steps in the whole minibatch, over all learners
    now: Evaluation
    values: Array  # [B]


class OfflineLearner:
    """Learns from recorded steps; an algorithm says what it makes of a minibatch (`gradient`)."""

    names: tuple[str, ...] = ()  # of the statistics that an algorithm adds to each minibatch's

    def __init__(self, config: OfflineConfig, policy: Policy, group: Group | None = None) -> None:
        self.config, self.policy, self.group = config, policy, group or Alone()
        self.optimizer = Optimizer(policy.network, config, self.group)
        self.minibatches = Minibatches(config.seed, config.sgd_minibatch_size)
        self.at = 0  # minibatches of the present pass that are done
        self._epochs: Iterator[Epoch] | None = None
        self._epoch: Epoch | None = None
        self.experience: Experience | None = None
        self.totals = (0, 0)  # steps and episodes of all learners

    def gradient(self, minibatch: Minibatch) -> tuple[Array, Array, list[float]]:
        """The loss's gradient by outputs `[B, K]` and values `[B]`, and sums of the statistics in `names`."""
        raise NotImplementedError

    def begin_iteration(self) -> None:
        """What is to be done before the minibatches of an iteration."""

    def more_stats(self) -> dict[str, float]:
        """Statistics of the iteration beside those of its minibatches."""
        return {}

    def training_step(self, workers: Recordings, timesteps_total: int) -> Step:
        """Learn from the next minibatches; the recorded steps are read when they are first needed."""
        if self.experience is None:
            self.take(*workers.share())
        start = perf_counter()
        timesteps, stats = self.update(timesteps_total)
        timers = {"env": 0.0, "policy": 0.0, "communicate": 0.0, "learn": perf_counter() - start}
        return Step(timesteps, [], [], stats, timers)

    def take(self, experience: Experience, first_row: int) -> None:
        """Learn from these steps from now on; `first_row` of all steps come before them."""
        self.experience = experience
        mine = experience.num_steps
        steps, episodes = self.group.sum(np.array([mine, len(experience.starts)], np.int64)).tolist()
        self.totals = steps, episodes
        rows = np.arange(first_row, first_row + mine)
        self._epochs = self.minibatches.epochs(np.ones((1, mine), bool), self.group, rows)
        self._learn_filter(experience)

    def update(self, timesteps_total: int) -> tuple[int, dict[str, float]]:
        """One iteration: how many steps were learned from, over all learners, and the statistics of all."""
        lr = scheduled(self.config.lr, self.config.lr_schedule, timesteps_total)
        sums = np.zeros(3 + len(self.names))
        done = count = 0
        self.begin_iteration()
        with self.optimizer.guarded(self._is_sound):
            while done < self.config.train_batch_size:
                rows, size = self._next_rows()
                found = self._learn(rows, size, lr)
                done += size
                count += 1
                sums += found
        means = (self.group.sum(sums) / count).tolist()
        names = ("policy_loss", "entropy", "grad_gnorm", *self.names)
        stats = dict(zip(names, means, strict=True))
        stats |= {
            "refused_minibatches": float(self.optimizer.refused),
            "cur_lr": lr,
            "num_epochs": self.num_epochs,
            "dataset_steps": float(self.totals[0]),
            "dataset_episodes": float(self.totals[1]),
        }
        return done, stats | self.more_stats()

    @property
    def num_epochs(self) -> float:
        """Passes over all steps so far, the present one as far as it is."""
        if self._epoch is None:
            return float(self.minibatches.passes)
        return self.minibatches.passes - 1 + self.at / len(self._epoch.sizes)

    def get_state(self) -> State:
        """The optimiser, and where in which pass learning is."""
        passes = self.minibatches.passes
        if self._epoch is None and self.at:  # the pass of a saved learner, which is not found again yet
            passes += 1
        return State.of(passes=passes, at=self.at, optimizer=self.optimizer.get_state())

    def set_state(self, state: State) -> None:
        """Take over a saved learner; its pass is found again by its number."""
        self.optimizer.set_state(state.part("optimizer"))
        self.at = int(state.values["at"])
        self.minibatches.passes = int(state.values["passes"])
        self._epoch = None
        if self.at:
            self.minibatches.passes -= 1

    def inputs(self, rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """What the network takes of these steps."""
        assert self.experience is not None
        return self.policy.encoder(tuple(part[rows] for part in self.experience.obs))

    def _learn(self, rows: Integers, size: int, lr: float) -> Array:
        """A step of the optimiser by one minibatch; the sums of its statistics."""
        assert self.experience is not None
        policy, share = self.policy, np.float32(1 / size)
        outputs, values, tape = policy.network.forward(self.inputs(rows))
        now = policy.distribution.evaluate(outputs, self.experience.actions[rows])
        d_outputs, d_values, more = self.gradient(Minibatch(rows, share, now, values))
        norm = self.optimizer.step(policy.network.vjp(tape, d_outputs, d_values), lr)
        norm = 0.0 if norm is None else norm / self.group.size
        return np.array([-now.log_prob.sum() * share, now.entropy.sum() * share, norm, *more])

    def _next_rows(self) -> tuple[Integers, int]:
        """Rows of the next minibatch, as far as they are this learner's, and the size of it over all learners."""
        assert self._epochs is not None
        if self._epoch is None:
            self._epoch = next(self._epochs)  # the first, or the one in which a saved learner was
        if self.at == len(self._epoch.sizes):
            self._epoch, self.at = next(self._epochs), 0
        epoch, at = self._epoch, self.at
        self.at += 1
        return epoch.rows[epoch.cuts[at] : epoch.cuts[at + 1]], int(epoch.sizes[at])

    def _is_sound(self) -> bool:
        assert self.experience is not None
        rows = np.arange(min(256, self.experience.num_steps))
        return is_sound(self.policy, StepInputs(self.inputs(rows)), self.group)

    def _learn_filter(self, experience: Experience) -> None:
        """Let an observation filter that has seen nothing yet see all recorded steps; then it stands still.

        Where several processes learn, Ray Data has fitted it already.
        """
        policy = self.policy
        if policy.filter is not None and not policy.filter.count:
            assert self.group.size == 1
            scaler = self.config.scaler
            measured = policy.encoder.measurements(experience.obs[0])
            policy.filter.fit(measured, scaler.name, scaler.quantile_range)
