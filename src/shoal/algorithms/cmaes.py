"""Covariance matrix adaptation evolution strategy (Hansen 2016), by its author's package `cma`.

The package has no state that could be saved without pickle. But a search follows from its start, its random numbers
and the returns that it was told: so a checkpoint holds these returns, and a resumed run tells them again.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

from shoal.algorithms.candidates import Candidates, Returns, overflowing
from shoal.config.evolution import CMAESConfig
from shoal.data.batch import Step
from shoal.data.state import State
from shoal.data.streams import Stream, generator
from shoal.errors import ConfigError
from shoal.machine.memory import available_memory, bytes_text
from shoal.models.network import Array
from shoal.models.policy import Policy
from shoal.parallel.group import Group
from shoal.parallel.workers import Workers

MATRICES = 3  # of a full search, at the least: the covariance, its eigenvectors, and what becomes of it next
ROUNDING = 0.1  # of the search's own spread, which is what two machines may differ by

log = logging.getLogger("shoal")


class CMAESLearner:
    """Asks CMA-ES for candidates, and tells it their returns."""

    def __init__(self, config: CMAESConfig, policy: Policy, group: Group | None = None) -> None:
        del group  # one process learns
        if find_spec("cma") is None:
            raise ConfigError("run: CMAES needs cma, which is not installed; type: pip install 'shoal-rl[cma]'")
        self.config = config
        self.candidates = Candidates(config, policy)
        _check_covariance(len(self.candidates.columns), config.max_full_covariance)
        self.search: Any = None  # begins with the first iteration, where a warm start has put the policy by then
        self.first, self.first_stdev, self.began = self.candidates.centre, config.noise_stdev, 0
        self.told: list[Returns] = []

    def training_step(self, workers: Workers, timesteps_total: int) -> Step:  # noqa: ARG002
        """Try candidates, and tell their returns."""
        before = self.candidates.centre
        if self.search is None:
            self._begin(before, self.config.noise_stdev)
        stdev = self.stdev
        asked = self.search.ask()
        trial = self.candidates.try_out(workers, np.array(asked, np.float32))
        start = perf_counter()
        with overflowing():
            self._tell(asked, trial.returns)
            if not self.candidates.move_to(self._mean(), np.square(np.float32(self.stdev))):
                self.search = None
        return self.candidates.report(trial, before, stdev, start)

    @property
    def stdev(self) -> float:
        """The mean standard deviation of the parameters that the search asks for."""
        if self.search is None:
            return self.config.noise_stdev
        return float(np.mean(self.search.sigma * self.search.sigma_vec.scaling * np.sqrt(self.search.sm.variances)))

    def get_state(self) -> State:
        """Where and how widely the search has begun, all returns since, and where that has led to."""
        iteration = self.candidates.iteration
        if self.search is None:
            return State.of(iteration=iteration)
        began = {"began": self.began, "first_stdev": self.first_stdev, "first": self.first.copy()}
        now = {"stdev": self.stdev, "mean": self._mean()}
        return State.of(iteration=iteration, told=np.array(self.told), **began, **now)

    def set_state(self, state: State) -> None:
        """Take over a saved learner: search again as it has searched."""
        values, arrays = state.values, state.arrays
        self.candidates.iteration = int(values["iteration"])
        self.search = None
        if "told" not in arrays:
            return
        first_stdev = float(values.get("first_stdev", self.config.noise_stdev))
        self._begin(arrays["first"].astype(np.float32), first_stdev, int(values.get("began", 0)))
        for returns in arrays["told"]:
            self._tell(self.search.ask(), returns)
        if "mean" in arrays and not self._is_at(arrays["mean"], float(values["stdev"])):
            log.warning("cma %s does not search as the one of the checkpoint did: its search begins anew", _version())
            self._begin(arrays["mean"], float(values["stdev"]))

    def _begin(self, first: Array, stdev: float, iteration: int | None = None) -> None:
        """Search around these parameters, with the random numbers of this iteration or another one."""
        import cma

        c = self.config
        self.first, self.first_stdev, self.told = first, stdev, []
        self.began = self.candidates.iteration if iteration is None else iteration
        rng = generator(c.seed, Stream.CANDIDATES, self.began)
        options = {
            "popsize": c.num_rollouts,
            "randn": lambda *shape: rng.standard_normal(shape),
            "seed": np.nan,  # leaves NumPy's own generator alone: all numbers come from `randn`
            "CMA_diagonal": len(first) > c.max_full_covariance,
            "verbose": -9,
        }
        self.search = cma.CMAEvolutionStrategy(first.astype(np.float64), stdev, options)

    def _tell(self, asked: list[Any], returns: Returns) -> None:
        self.told.append(np.array(returns))
        self.search.tell(asked, (-returns).tolist())  # it looks for the lowest

    def _mean(self) -> Array:
        return np.asarray(self.search.mean, np.float32)

    def _is_at(self, mean: Array, stdev: float) -> bool:
        """Whether the search is where another one was, but for what other machines round in another way."""
        return bool(np.abs(self._mean() - mean).max() <= ROUNDING * stdev) and abs(self.stdev / stdev - 1) <= ROUNDING


def _version() -> str:
    from importlib.metadata import version

    return version("cma")


def _check_covariance(count: int, most: int) -> None:
    """Refuse a full covariance matrix that memory cannot hold, with its eigenvectors and what computes them."""
    needed, free = MATRICES * 8 * count**2, available_memory()
    if count <= most and needed > free:
        raise ConfigError(
            f"config.max_full_covariance: {MATRICES} matrices of {count:,} x {count:,} parameters take "
            f"{bytes_text(needed)} of memory, and {bytes_text(free)} are free; use less than {count}"
        )
