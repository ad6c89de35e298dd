"""The scale of rewards: one running standard deviation of the discounted return, owned by the learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Batch
from shoal.data.state import State

Numbers = NDArray[np.float64]

LEAST_SHARE = 0.1  # of the mean return that the scale never falls below


class RewardScale:
    """What rewards are divided by, so that a learner sees returns of about 1 in whatever unit they come.

    For every environment the rewards so far are summed, each step discounting what came before, from the first step of
    its episode on. The scale is the standard deviation of these sums over all steps of the run. Workers return rewards
    as they are and only the learner divides, so there is one scale however many workers there are, and evaluation and
    reported returns know nothing of it.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.count = 0.0
        self.mean = 0.0
        self.m2 = 0.0  # sum of squared deviations
        self.unfinished: Numbers = np.zeros(0)  # [N], the sums of the episodes that go on in the next batch

    @property
    def divisor(self) -> float:
        """The standard deviation; 1 until returns have differed from 0.

        Where all returns are nearly alike, it is a tenth of their mean: to divide by less would make them large.
        """
        if not self.count:
            return 1.0
        deviation = sqrt(self.m2 / self.count)
        return max(deviation, LEAST_SHARE * abs(self.mean)) or 1.0

    def update(
        self, batch: Batch, rewards: NDArray[Any], total: Callable[[Numbers], Numbers] = lambda numbers: numbers
    ) -> None:
        """Learn from the `[T, N]` rewards of a batch, which may be clipped (Chan's parallel formula).

        Where several learners share the batch, `total` gives the sum of an array over them.
        """
        self.learn(self._returns(batch, rewards, total)[batch.valid], total)

    def learn(self, returns: NDArray[Any], total: Callable[[Numbers], Numbers] = lambda numbers: numbers) -> None:
        """Learn from returns `[B]`, wherever they come from; `total` as in `update`."""
        returns = returns.astype(np.float64, copy=False)
        count, whole_sum = total(np.array([len(returns), returns.sum()])).tolist()
        if not count:
            return
        mean = whole_sum / count
        m2 = float(total(np.array([np.square(returns - mean).sum()]))[0])
        whole = self.count + count
        delta = mean - self.mean
        self.mean += delta * (count / whole)
        self.m2 += m2 + delta * delta * (self.count * count / whole)
        self.count = whole

    def update_part(self, batch: Batch, rewards: NDArray[Any], num_envs: int) -> None:
        """Learn from a fragment of some of `num_envs` environments (`columns`); the others' sums stay as they are."""
        if batch.columns is None:
            self.update(batch, rewards)
            return
        whole = self.unfinished
        if len(whole) != num_envs:
            whole = np.zeros(num_envs)
        self.unfinished = whole[batch.columns]
        self.update(replace(batch, columns=None), rewards)
        whole[batch.columns] = self.unfinished
        self.unfinished = whole

    def get_state(self) -> State:
        """Count, mean, squared deviations, and the sums of unfinished episodes."""
        return State.of(count=self.count, mean=self.mean, m2=self.m2, unfinished=self.unfinished.copy())

    def set_state(self, state: State) -> None:
        """Take over what another scale has seen."""
        self.count, self.mean, self.m2 = (float(state.values[name]) for name in ("count", "mean", "m2"))
        self.unfinished = state.arrays["unfinished"].astype(np.float64)

    def _returns(self, batch: Batch, rewards: NDArray[Any], total: Callable[[Numbers], Numbers]) -> Numbers:
        """The discounted sum `[T, N]` of the rewards up to each step; keeps those of unfinished episodes."""
        steps, num_envs = rewards.shape
        columns = np.arange(num_envs) if batch.columns is None else batch.columns
        whole = int(total(np.array([float(num_envs)]))[0])
        if len(self.unfinished) != whole:  # the first batch, or one that lacks a lost worker's environments
            self.unfinished = np.zeros(whole)
        running = self.unfinished[columns]
        goes_on = ~(batch.terminated | batch.truncated)
        is_after_cut = _after_cut(batch)
        goes_on[:-1] |= is_after_cut[1:]
        goes_on |= is_after_cut
        returns = np.empty((steps, num_envs))
        for t in range(steps):
            running = np.where(is_after_cut[t], running, self.gamma * running + rewards[t])
            returns[t] = running
            running = np.where(goes_on[t], running, 0.0)
        unfinished = np.zeros(whole)
        unfinished[columns] = running
        self.unfinished = total(unfinished)
        return returns


def _after_cut(batch: Batch) -> NDArray[np.bool_]:
    """Where `[T, N]` the rows are that fill up the time of environments which were late; their episodes go on."""
    if batch.cut is None:
        return np.zeros(batch.valid.shape, bool)
    has_more = np.logical_or.accumulate(batch.valid[::-1], axis=0)[::-1]
    return ~has_more & batch.cut
