"""What the messages of workers cost here, measured with two of them on Ray."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from shoal.config.changing import unchecked
from shoal.config.settings import AlgorithmConfig
from shoal.data.throughput import Costs, SamplingLayout, message_s
from shoal.envs.making import EnvMaker
from shoal.models.catalog import with_registered_model
from shoal.parallel.start import start_workers
from shoal.runs.measuring import in_one_process

WORKERS = 2
LONGEST_S = 5.0
FEWEST, MOST = 3, 50


def with_measured_messages(costs: Costs, config: AlgorithmConfig, maker: EnvMaker) -> Costs:
    """The costs with those of messages as two workers have them here, all by the same factor."""
    alone = unchecked(with_registered_model(in_one_process(config)), env_task_fn=None)
    shared = min(config.num_cpus_per_worker, costs.crowding.cores / WORKERS)
    workers = start_workers(unchecked(alone, num_workers=WORKERS, num_cpus_per_worker=shared), maker)
    try:
        workers.sample(1)
        spent: list[float] = []
        until = perf_counter() + LONGEST_S
        while len(spent) < FEWEST or (len(spent) < MOST and perf_counter() < until):
            spent.append(workers.sample(1).communicate_time_s)
    finally:
        workers.stop()
    known = message_s(costs, SamplingLayout(WORKERS, 1, 1, cores=costs.crowding.cores))
    return replace(costs, messages=costs.messages.times(float(np.median(spent)) / known))
