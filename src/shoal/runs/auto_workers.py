"""What `num_workers: auto` comes to: the number that a short profile says is fastest, of those that fit the cores."""

from __future__ import annotations

import logging

from shoal.config.settings import AlgorithmConfig, Config
from shoal.envs.making import EnvMaker
from shoal.errors import ShoalError
from shoal.machine.cores import cores
from shoal.runs.forecast import auto_workers
from shoal.runs.measuring import ProfileBudget
from shoal.runs.profiling import measured_costs

SECONDS = 1.5  # of measuring; a slow environment takes a few steps
LONGEST_CALL_S = 30.0

# What a start is about to do, in plain words, for whoever shows it.
progress = logging.getLogger("shoal.progress")


def with_recorded_count(config: Config, recorded: int) -> Config:
    """The configuration of a run that goes on: `num_workers: auto` is what it was, as long as that fits.

    So its environments stay what they were. Its checkpoint has the state of each worker, and so their number.
    """
    if config.num_workers != "auto" or not max(config.num_learners, 1) <= recorded <= _workers_that_fit(config):
        return config
    progress.info("num_workers: auto is %d, as before", recorded)
    return config.with_worker_count(recorded)


def with_worker_count(config: Config, maker: EnvMaker) -> Config:
    """The configuration with `num_workers: auto` resolved."""
    if config.num_workers != "auto":
        return config
    fit = _workers_that_fit(config)
    least = max(config.num_learners, 1)
    if fit <= least:  # nothing to choose
        progress.info("num_workers: auto is %d, which is all that fits", fit)
        return config.with_worker_count(fit)
    progress.info("measuring how many of at most %d workers are fastest", fit)
    try:
        costs = measured_costs(config, maker, ProfileBudget(SECONDS, with_others=False), LONGEST_CALL_S)
    except ShoalError as error:  # what is really wrong will be told when the workers start
        sentence = str(error).splitlines()[0]
        progress.info("num_workers: auto is %d, as many as fit; it was not measured: %s", fit, sentence)
        return config.with_worker_count(fit)
    count, why = auto_workers(config, costs, fit, cores())
    progress.info("num_workers: auto is %d: %s", count, why)
    return config.with_worker_count(count)


def _workers_that_fit(config: AlgorithmConfig) -> int:
    from shoal.parallel.ray_session import workers_that_fit

    return workers_that_fit(config)
