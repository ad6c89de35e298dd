"""Which set of workers a configuration asks for."""

from __future__ import annotations

from shoal.config.settings import AlgorithmConfig
from shoal.envs.making import EnvMaker
from shoal.parallel.workers import LocalWorkers, Workers


def start_workers(config: AlgorithmConfig, maker: EnvMaker) -> Workers:
    """Workers in this process (`num_workers: 0`), or Ray actors."""
    if config.num_workers == 0:
        return LocalWorkers(config, maker)
    from shoal.parallel.ray_workers import RayWorkers

    return RayWorkers(config, maker)
