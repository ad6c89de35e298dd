"""Which set of workers and learners a configuration asks for."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from shoal.config.offline import OfflineConfig
from shoal.config.settings import AlgorithmConfig
from shoal.envs.importing import UserCode
from shoal.envs.making import EnvMaker
from shoal.envs.process_messages import packed
from shoal.models.policy import Policy
from shoal.parallel.capacity import check_ranks_here, check_room
from shoal.parallel.evaluators import Evaluators, LocalEvaluators
from shoal.parallel.group import Alone
from shoal.parallel.learner import Learner, MakeLearner
from shoal.parallel.workers import Workers
from shoal.sampling.worker import Worker

# What a start is about to do, in plain words, for whoever shows it.
progress = logging.getLogger("shoal.progress")


def start_workers(config: AlgorithmConfig, maker: EnvMaker) -> Workers:
    """One worker in this process (`num_workers: 0`), or many on hosts of a Ray; their `stop` ends them.

    Where an algorithm learns from recorded steps, these stand in their place.
    """
    if isinstance(config, OfflineConfig):
        from shoal.parallel.offline_workers import OfflineWorkers

        progress.info("reading which recorded steps there are")
        return OfflineWorkers(config, maker)
    if config.worker_count == 0:
        check_room(config, is_private=False)
        check_ranks_here(config)
        progress.info("making %s", _environments(config) or "the environments")
        return Worker(config, maker)
    from shoal.parallel.ray_session import connect
    from shoal.parallel.ray_workers import RayWorkers

    packed(maker)  # which says what is wrong before Ray is started
    session = connect(config)
    workers = _counted(config.worker_count, "worker")
    environments = _environments(config)
    each = f" of {environments}{' each' * (config.worker_count > 1)}" if environments else ""
    progress.info("starting %s%s", workers, each)
    return RayWorkers(config, maker, session)


def start_learner(
    config: AlgorithmConfig, workers: Workers, user_code: UserCode, make: MakeLearner, closing: ExitStack
) -> Learner:
    """One learner in this process, or `num_learners` Ray actors that act as one and end when `closing` does."""
    first = make(config, workers.policy, Alone())
    if isinstance(config, OfflineConfig) and config.worker_count:
        from shoal.parallel.ray_train import start_ray_train

        return start_ray_train(config, workers, user_code, make, first, closing)
    if config.num_learners == 1:
        return first
    from shoal.parallel.ray_learners import RayLearners
    from shoal.parallel.ray_workers import RayWorkers

    assert isinstance(workers, RayWorkers)
    assert config.shares_batches
    progress.info("starting %s", _counted(config.num_learners, "learner"))
    learners = RayLearners(config, workers, user_code, make, first)
    closing.callback(learners.stop)
    return learners


def start_evaluators(
    config: AlgorithmConfig, policy: Policy, user_code: UserCode, workers: Workers | None, closing: ExitStack
) -> Evaluators:
    """Evaluation in this process (`evaluation_num_workers: 0`), or Ray actors that end when `closing` does."""
    if not config.evaluation_num_workers:
        return LocalEvaluators()
    from shoal.parallel.offline_workers import OfflineWorkers
    from shoal.parallel.ray_evaluators import RayEvaluators
    from shoal.parallel.ray_session import connect
    from shoal.parallel.ray_workers import RayWorkers

    running = workers.session if isinstance(workers, RayWorkers | OfflineWorkers) else None
    if running is not None:
        session = running
    else:
        session = connect(config)
        closing.callback(session.stop)
    progress.info("starting %s for evaluation", _counted(config.evaluation_num_workers, "worker"))
    evaluators = RayEvaluators(config, policy, user_code, session)
    closing.callback(evaluators.stop)
    return evaluators


def _environments(config: AlgorithmConfig) -> str:
    """How many environments a worker makes; empty where that may follow from a native vector environment."""
    return "" if config.num_envs_per_worker == "auto" else _counted(config.envs_per_worker, "environment")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
