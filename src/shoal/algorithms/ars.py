"""Augmented random search (Mania et al. 2018, V1-t and V2-t): a step along the best of random directions.

With directions d ~ N(0, I), parameters theta and `noise_stdev` s, each direction has the returns r+ of theta + s d and
r- of theta - s d. Of the b directions with the highest max(r+, r-), with the standard deviation sigma of their returns:

    theta  <-  theta + lr / (b sigma)  sum of (r+ - r-) d
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from shoal.algorithms.candidates import Candidates, overflowing
from shoal.algorithms.es import pairs_around
from shoal.config.evolution import ARSConfig
from shoal.data.batch import Step
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers


class ARSLearner:
    """Tries random directions, and steps along the best of them."""

    def __init__(self, config: ARSConfig, policy: Policy, group: Group | None = None) -> None:
        del group  # one process learns: a step takes next to no time
        self.config = config
        self.candidates = Candidates(config, policy)

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Try candidates, choose the best directions, step."""
        c = self.config
        theta = self.candidates.centre
        directions = self.candidates.noise(c.num_rollouts // 2)
        trial = self.candidates.try_out(workers, pairs_around(theta, directions, c.noise_stdev))
        start = perf_counter()
        returns = trial.returns.reshape(2, -1)
        best = np.argsort(-returns.max(axis=0), kind="stable")[: c.pairs_used]
        gains = returns[0, best] - returns[1, best]
        sigma = returns[:, best].std()
        lr = scheduled(c.lr, c.lr_schedule, timesteps_total)
        scale = lr / (c.pairs_used * sigma) if sigma > 0 else 0.0  # all alike: no direction is better
        with overflowing():
            self.candidates.move_to(theta + (scale * gains).astype(np.float32) @ directions[best])
        return self.candidates.report(trial, theta, c.noise_stdev, start, cur_lr=lr)

    def get_state(self) -> State:
        """Which iteration is next."""
        return State.of(iteration=self.candidates.iteration)

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.candidates.iteration = int(state.values["iteration"])
