"""Evolution strategies (Salimans et al. 2017): ascent of the mean return of perturbed policies.

With noise e ~ N(0, I), parameters theta and `noise_stdev` s, the gradient of the mean return of theta + s e is

    g  =  mean of  w (e) e / s,        w: ranks of the returns, from -1/2 to 1/2

Every e is tried on both sides (theta + s e and theta - s e). Adam steps along g, and `l2_coeff` pulls theta towards 0.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from shoal.algorithms.candidates import Candidates, Returns, overflowing
from shoal.algorithms.optimizer import Adam
from shoal.config.evolution import ESConfig
from shoal.data.batch import Step
from shoal.data.returns import scheduled
from shoal.data.state import State
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers


class ESLearner:
    """Tries pairs of perturbed policies, and steps along the gradient that their ranks estimate."""

    def __init__(self, config: ESConfig, policy: Policy, group: Group | None = None) -> None:
        del group  # one process learns: a step takes next to no time
        self.config = config
        self.candidates = Candidates(config, policy)
        self.adam = Adam(len(self.candidates.columns), config.optimizer.betas, config.optimizer.eps)

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:
        """Try candidates, rank them, step."""
        c = self.config
        theta = self.candidates.centre
        noise = self.candidates.noise(c.num_rollouts // 2)
        trial = self.candidates.try_out(workers, pairs_around(theta, noise, c.noise_stdev))
        start = perf_counter()
        weights = centred_ranks(trial.returns).reshape(2, -1)
        gradient = (weights[0] - weights[1]) @ noise / np.float32(c.num_rollouts * c.noise_stdev)
        lr = scheduled(c.lr, c.lr_schedule, timesteps_total)
        moved, moments = theta.copy(), self.adam.get_state()
        with overflowing():
            self.adam.step(moved, np.float32(c.l2_coeff) * theta - gradient, lr)
        if not self.candidates.move_to(moved, self.adam.m, self.adam.v):
            self.adam.set_state(moments)
        return self.candidates.report(trial, theta, c.noise_stdev, start, cur_lr=lr)

    def get_state(self) -> State:
        """The optimiser, and which iteration is next."""
        return State.of(iteration=self.candidates.iteration, adam=self.adam.get_state())

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.candidates.iteration = int(state.values["iteration"])
        self.adam.set_state(state.part("adam"))


def pairs_around(centre: Array, noise: Array, stdev: float) -> Array:
    """The candidates `[2 K, D]` on both sides of a centre `[D]` along `[K, D]` directions: first all of one side."""
    steps = np.float32(stdev) * noise
    return np.concatenate([centre + steps, centre - steps])


def centred_ranks(returns: Returns) -> Array:
    """The rank of each return, from -1/2 for the lowest to 1/2 for the highest; equal ones share the mean of theirs."""
    _, groups, counts = np.unique(returns, return_inverse=True, return_counts=True)
    last = counts.cumsum() - 1
    ranks = last - (counts - 1) / 2
    return (ranks[groups] / max(len(returns) - 1, 1) - 0.5).astype(np.float32)
