"""Covariance matrix adaptation evolution strategy (Hansen 2016), by its author's package `cma`.

The package has no state that could be saved without pickle. But a search follows from its start, its random numbers
and the returns that it was told: so a checkpoint holds these returns, and a resumed run tells them again.
"""

from __future__ import annotations

from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

from shoal.algorithms.candidates import Candidates, Returns
from shoal.config.evolution import CMAESConfig
from shoal.data.batch import Step
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.errors import ConfigError
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers


class CMAESLearner:
    """Asks CMA-ES for candidates, and tells it their returns."""

    def __init__(self, config: CMAESConfig, policy: Policy, group: Group | None = None) -> None:
        del group  # one process learns
        if find_spec("cma") is None:
            raise ConfigError("run: CMAES needs cma, which is not installed; type: pip install 'shoal-rl[cma]'")
        self.config = config
        self.candidates = Candidates(config, policy)
        self.first = self.candidates.centre
        self.told: list[Returns] = []
        self.search = self._new_search()

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:  # noqa: ARG002
        """Try candidates, and tell their returns."""
        before, stdev = self.candidates.centre, self._stdev()
        asked = self.search.ask()
        trial = self.candidates.try_out(workers, np.array(asked, np.float32))
        start = perf_counter()
        self._tell(asked, trial.returns)
        self.candidates.move_to(self._mean())
        return trial.step(stdev, self.candidates.centre - before, start)

    def get_state(self) -> State:
        """The first centre, and all returns since."""
        told = np.array(self.told).reshape(len(self.told), -1)
        return State.of(iteration=self.candidates.iteration, first=self.first.copy(), told=told)

    def set_state(self, state: State) -> None:
        """Take over a saved learner: search again as it has searched."""
        self.first = state.arrays["first"].astype(np.float32)
        self.told = []
        self.search = self._new_search()
        for returns in state.arrays["told"]:
            self._tell(self.search.ask(), returns)
        self.candidates.iteration = int(state.values["iteration"])

    def _new_search(self) -> Any:
        import cma

        c = self.config
        rng = generator(c.seed, Stream.CANDIDATES, 0)
        options = {
            "popsize": c.num_rollouts,
            "randn": lambda *shape: rng.standard_normal(shape),
            "seed": np.nan,  # leaves NumPy's own generator alone: all numbers come from `randn`
            "CMA_diagonal": len(self.first) > c.max_full_covariance,
            "verbose": -9,
        }
        return cma.CMAEvolutionStrategy(self.first.astype(np.float64), c.noise_stdev, options)

    def _tell(self, asked: list[Any], returns: Returns) -> None:
        self.told.append(np.array(returns))
        self.search.tell(asked, (-returns).tolist())  # it looks for the lowest

    def _mean(self) -> Array:
        return np.asarray(self.search.mean, np.float32)

    def _stdev(self) -> float:
        return float(np.mean(self.search.sigma * self.search.sigma_vec.scaling * np.sqrt(self.search.sm.variances)))
