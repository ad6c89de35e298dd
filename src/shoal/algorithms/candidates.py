"""Parameter vectors that are tried in whole episodes: how ES, ARS, CEM and CMAES ask for their returns.

Every environment acts with a parameter vector of its own, and plays one episode of it; with more vectors than
environments there are several rounds. A row of the network depends on its own vector alone, so the returns are the
same, bit for bit, with any number of workers.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from shoal.config.evolution import EvolutionConfig
from shoal.data.batch import Sample, SampleSummary, Step
from shoal.data.streams import Stream, generator
from shoal.models.network import Array, Inputs
from shoal.models.policy import Policy
from shoal.parallel.workers import Workers, check_usable

Returns = NDArray[np.float64]
SEEN_ROWS = 256  # of observations, on which new parameters have to give finite outputs

log = logging.getLogger("shoal")


@dataclass(frozen=True)
class CandidateReturns:
    """What came of one iteration's candidates."""

    returns: Returns  # [C]
    samples: list[SampleSummary]


class Candidates:
    """The parameters that actions depend on, `[D]` of a network's `[P]`, and the episodes in which others are tried."""

    def __init__(self, config: EvolutionConfig, policy: Policy) -> None:
        self.config, self.policy = config, policy
        self.columns = searched(config, policy)
        self.iteration = 0
        self.refused = 0  # steps of this iteration that were not sound
        self._seen: Inputs | None = None  # observations of the last episodes

    @property
    def centre(self) -> Array:
        """The present parameters `[D]`, a copy."""
        return self.policy.network.params[self.columns]

    def move_to(self, centre: Array, *beside: Array) -> bool:
        """Make these `[D]` the present parameters if they are sound, with what else was learned; an iteration is over.

        If not, the present ones are kept, and the learner has to keep what belongs to them.
        """
        before = self.centre
        self.iteration += 1
        self._put(centre)
        is_sound = all(np.isfinite(array).all() for array in beside) and self._is_sound(centre)
        self.refused = int(not is_sound)
        if not is_sound:
            self._put(before)
            log.warning("the search diverged (noise_stdev %g): the policy from before is kept", self.config.noise_stdev)
        return is_sound

    def report(
        self, trial: CandidateReturns, before: Array, noise_stdev: float, started: float, **stats: float
    ) -> Step:
        """What the trainer is told of an iteration that began at `before` `[D]`, and learned since `started`."""
        found = {
            "return_mean": float(trial.returns.mean()),
            "return_max": float(trial.returns.max()),
            "return_min": float(trial.returns.min()),
            "noise_stdev": noise_stdev,
            "update_norm": float(np.linalg.norm(self.centre - before)),
            "refused_steps": float(self.refused),
        }
        return Step.from_samples(trial.samples, {**found, **stats}, perf_counter() - started)

    def noise(self, count: int) -> Array:
        """Standard normal numbers `[count, D]`, which follow from the seed and the iteration alone."""
        rng = generator(self.config.seed, Stream.CANDIDATES, self.iteration)
        return rng.standard_normal((count, len(self.columns)), np.float32)

    def try_out(self, workers: Workers, candidates: Array) -> CandidateReturns:
        """The returns of `[C, D]` parameter vectors, each the mean of `episodes_per_rollout` episodes."""
        policy, num_envs = self.policy, workers.config.num_envs
        totals = np.zeros(len(candidates))
        samples: list[SampleSummary] = []
        waiting = list(range(len(candidates))) * self.config.episodes_per_rollout
        seen = _LateFilter(policy)
        try:
            while waiting:
                now, waiting = waiting[:num_envs], waiting[num_envs:]
                rows = np.repeat(policy.network.params[None], num_envs, axis=0)
                rows[: len(now), self.columns] = candidates[now]
                policy.candidates = rows
                sample = workers.sample(1)
                check_usable(sample)
                seen.add(sample)
                samples.append(sample.summary)
                returns = {episode.env_index: episode.reward for episode in sample.episodes}
                for row, number in enumerate(now):
                    if row in returns:
                        totals[number] += returns[row]
                    else:  # its worker was lost meanwhile
                        waiting.append(number)
        finally:
            policy.candidates = None
        seen.apply()
        self._see(sample)
        return CandidateReturns(totals / self.config.episodes_per_rollout, samples)

    def _put(self, centre: Array) -> None:
        self.policy.network.params[self.columns] = centre
        self.policy.network.sync()

    def _see(self, sample: Sample) -> None:
        """Remember some observations of a sample."""
        first = tuple(part.reshape(-1, *part.shape[2:])[:SEEN_ROWS].copy() for part in sample.batch.obs)
        self._seen = self.policy.encoder(first)

    def _is_sound(self, centre: Array) -> bool:
        """Whether these present parameters, their squares, and the outputs for what was seen are finite."""
        with overflowing():
            if not isfinite(np.dot(centre, centre)):
                return False
            return self._seen is None or bool(np.isfinite(self.policy.network.act(self._seen)).all())


def overflowing() -> AbstractContextManager[None]:
    """For what may not be finite, and is refused then (see `Candidates.move_to`)."""
    return np.errstate(over="ignore", invalid="ignore")


class _LateFilter:
    """Lets the observation filter see an iteration's episodes when all are played: it is the same for every candidate.

    Without this, those that are tried later would see other observations.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.filter = policy, policy.filter
        if self.filter is not None:
            self._before = self._after = self.filter.get_state()

    def add(self, sample: Sample) -> None:
        """See a sample."""
        if self.filter is not None:
            self.apply()
            self.policy.learn_filter(sample.batch)
            self._after = self.filter.get_state()
            self.filter.set_state(self._before)

    def apply(self) -> None:
        """Filter by all that was seen."""
        if self.filter is not None:
            self.filter.set_state(self._after)


def searched(config: EvolutionConfig, policy: Policy) -> NDArray[np.int64]:
    """Which parameters `[D]` actions depend on: not those of values, nor the spread of actions that are not sampled."""
    network = policy.network
    matters = ~network.value_params
    spread = network.named_params().get("log_std")
    if spread is not None and not config.explore:
        matters[-spread.size :] = False  # every network has it at the end
    return np.flatnonzero(matters)
