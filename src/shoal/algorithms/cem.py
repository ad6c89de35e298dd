"""The cross-entropy method (de Boer et al. 2005; with added noise, Szita & Lorincz 2006).

Parameters are drawn from a Gaussian with a mean and a standard deviation for each of them; the next Gaussian is fitted
to the `elite_frac` of them with the highest returns. The variance of `extra_std`, which falls to 0 over
`extra_decay_time` iterations, is added, so that the search does not narrow too soon.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from shoal.algorithms.candidates import Candidates, overflowing
from shoal.config.evolution import CEMConfig
from shoal.data.batch import Step
from shoal.data.state import State
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers


class CEMLearner:
    """Draws policies from a Gaussian, and fits the next one to the best of them."""

    def __init__(self, config: CEMConfig, policy: Policy, group: Group | None = None) -> None:
        del group  # one process learns: a step takes next to no time
        self.config = config
        self.candidates = Candidates(config, policy)
        self.std = np.full(len(self.candidates.columns), config.noise_stdev, np.float32)

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:  # noqa: ARG002
        """Try candidates, and fit the Gaussian to the elite."""
        c = self.config
        mean, std = self.candidates.centre, self._widened()
        drawn = mean + std * self.candidates.noise(c.num_rollouts)
        trial = self.candidates.try_out(workers, drawn)
        start = perf_counter()
        elite = drawn[np.argsort(-trial.returns, kind="stable")[: c.num_elites]]
        with overflowing():
            fitted: Array = elite.mean(axis=0)
            spread: Array = elite.std(axis=0)
            if self.candidates.move_to(fitted, np.square(spread)):
                self.std = spread
        return self.candidates.report(trial, mean, float(std.mean()), start)

    def get_state(self) -> State:
        """The Gaussian's standard deviations, and which iteration is next."""
        return State.of(iteration=self.candidates.iteration, std=self.std.copy())

    def set_state(self, state: State) -> None:
        """Take over a saved learner."""
        self.candidates.iteration = int(state.values["iteration"])
        self.std = state.arrays["std"].astype(np.float32)

    def _widened(self) -> Array:
        """The standard deviations `[D]` with what is added to them in this iteration."""
        c = self.config
        left = max(0.0, 1 - self.candidates.iteration / max(c.extra_decay_time, 1))
        return np.sqrt(np.square(self.std) + np.float32(left * c.extra_std**2))
