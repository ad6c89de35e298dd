"""The learners of several PPO runs that learn together: one pass of the networks for a minibatch of each.

The runs differ in nothing but the seed. Every learner keeps its own batch, order of minibatches, optimiser and
statistics; only the passes and the steps are made for all at once, with the same numbers to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.minibatches import Epoch
from shoal.algorithms.network_inputs import GATHERED_BYTES, StepInputs
from shoal.algorithms.optimizer import Optimizer
from shoal.algorithms.ppo import BatchSteps, EpochStatistics, PPOLearner, Terms, Update
from shoal.algorithms.stacked_optimizer import StackedOptimizer
from shoal.data.batch import Batch
from shoal.models.distributions import Evaluation
from shoal.models.mlp import MLP
from shoal.models.network import Array
from shoal.models.stacked_mlp import StackedMLP, why_not_stacked


def why_not_learned_together(learner: object) -> str | None:
    """What keeps a learner from learning together with others, if anything does."""
    if type(learner) is not PPOLearner:
        return "they do not learn by PPO"
    if learner.config.kl_coeff:
        return "kl_coeff is different in each of them"
    if learner.group.size > 1:
        return "they have several learners"
    return why_not_stacked(learner.policy.network)


class StackedPPO:
    """Learns with several learners at once."""

    def __init__(self, learners: Sequence[PPOLearner]) -> None:
        self._learners = list(learners)
        self.network = StackedMLP(_networks(self._learners))
        self._optimizer = StackedOptimizer(_optimizers(self._learners), self.network.params)

    def update(
        self,
        batches: Sequence[Batch],
        timesteps_total: int,
        speaking: Sequence[Callable[[], AbstractContextManager[None]]],
    ) -> list[dict[str, float]]:
        """What `PPOLearner.update` does for each learner with its own `[T, N]` batch; the statistics of each.

        What is told within a context of `speaking` is about one of them.
        """
        works = []
        for learner, batch in zip(self._learners, batches, strict=True):
            works.append(learner.begin(batch, timesteps_total))
        with ExitStack() as stack:
            for learner, work, context in zip(self._learners, works, speaking, strict=True):
                stack.enter_context(context())  # left after the guard, which may have something to tell
                stack.enter_context(learner.guarded(work))
            self._load()
            stats = self._passes(works)
            self._store()
        finished = []
        for learner, work, own in zip(self._learners, works, stats, strict=True):
            finished.append(learner.finish(work, own))
        return finished

    def _passes(self, works: Sequence[Update]) -> list[dict[str, float]]:
        """All passes over the batches; the statistics of the last of each learner."""
        stats: list[dict[str, float]] = [{} for _ in works]
        for count in range(1, self._learners[0].config.num_sgd_iter + 1):
            epochs = [next(work.epochs) for work in works]
            totals = [learner.statistics(count) for learner in self._learners]
            self._learn_once(epochs, works, totals)
            done = []
            for row, (learner, own) in enumerate(zip(self._learners, totals, strict=True)):
                if own is not None:
                    stats[row] = own.means(learner.group) | {"num_passes": float(count)}
                    done.append(learner.is_far_enough(stats[row]["kl"]))
            if any(done):
                if count < self._learners[0].config.num_sgd_iter:
                    self._go_on_without(done, count, works, stats)
                break
        return stats

    def _go_on_without(
        self, done: Sequence[bool], count: int, works: Sequence[Update], stats: list[dict[str, float]]
    ) -> None:
        """Let those learn on, each by itself, whom `target_kl` has not ended as it has others."""
        self._store()
        for row, (learner, work) in enumerate(zip(self._learners, works, strict=True)):
            if not done[row]:
                stats[row] = learner.passes(work, count)
        self._load()

    def _learn_once(
        self, epochs: Sequence[Epoch], works: Sequence[Update], totals: Sequence[EpochStatistics | None]
    ) -> None:
        """One pass over each batch: a step of each optimiser for each minibatch."""
        lead, now = self._learners[0], works[0].now
        x = np.stack([_inputs(work).take(epoch.rows)[0] for epoch, work in zip(epochs, works, strict=True)])
        ordered = []
        for learner, epoch, work in zip(self._learners, epochs, works, strict=True):
            ordered.append(work.steps.ordered(epoch, learner.group, with_dist_inputs=False))
        steps = StackedSteps.of(ordered)
        for part, count in epochs[0]:
            size = np.float32(1 / count)
            outputs, values, tape = self.network.forward(x[:, part])
            shape = values.shape
            terms = lead.objective(outputs.reshape(-1, outputs.shape[2]), values.reshape(-1), steps.part(part), now)
            d_outputs, d_values = lead.gradient(terms, now, size)
            gradients = self.network.vjp(tape, d_outputs.reshape(outputs.shape), d_values.reshape(shape))
            norms = self._optimizer.step(gradients, now.lr)
            for row, (own, norm) in enumerate(zip(totals, norms, strict=True)):
                if own is not None and norm is not None:
                    own.add([_terms_of(terms, slice(row * shape[1], (row + 1) * shape[1]))], size, norm)

    def _load(self) -> None:
        self.network.load()
        self._optimizer.load()

    def _store(self) -> None:
        self.network.store()
        self._optimizer.store()


def fit_together(batches: Sequence[Batch]) -> bool:
    """Whether batches make the same minibatches: all of the same shape and with nothing left out, and not too large."""
    shape = batches[0].valid.shape
    for batch in batches:
        size = sum(part.nbytes for part in batch.obs)
        if batch.valid.shape != shape or not batch.valid.all() or size > GATHERED_BYTES:
            return False
    return True


class StackedSteps(NamedTuple):
    """The steps of several batches in the order of a pass."""

    actions: NDArray[Any]  # [S, B, A]
    log_probs: Array  # [S, B]
    advantages: Array  # [S, B]
    targets: Array  # [S, B]

    @classmethod
    def of(cls, steps: Sequence[BatchSteps]) -> StackedSteps:
        """The steps of each batch, of which there are equally many."""
        actions = np.stack([each.actions for each in steps])
        log_probs = np.stack([each.log_probs for each in steps])
        advantages = np.stack([each.advantages for each in steps])
        targets = np.stack([each.targets for each in steps])
        return cls(actions, log_probs, advantages, targets)

    def part(self, part: slice) -> BatchSteps:
        """A stretch of each batch's steps, one batch after another."""
        actions = self.actions[:, part]
        rows = [each[:, part].reshape(-1) for each in self[1:]]
        return BatchSteps(actions.reshape(-1, actions.shape[2]), rows[0], None, rows[1], rows[2])


def _terms_of(terms: Terms, rows: slice) -> Terms:
    """The terms of one of several minibatches; what only the gradient needs is left out."""
    now, kl = terms.now, terms.now.kl
    own = Evaluation(now.log_prob[rows], now.entropy[rows], None if kl is None else kl[rows], None)
    others: list[Array] = [part[rows] for part in terms[1:]]
    return Terms(own, *others)


def _inputs(work: Update) -> StepInputs:
    assert isinstance(work.inputs, StepInputs)
    return work.inputs


def _networks(learners: Sequence[PPOLearner]) -> list[MLP]:
    networks = []
    for learner in learners:
        assert isinstance(learner.policy.network, MLP)
        networks.append(learner.policy.network)
    return networks


def _optimizers(learners: Sequence[PPOLearner]) -> list[Optimizer]:
    return [learner.optimizer for learner in learners]
