"""How many processes a configuration takes, and how many CPUs and GPUs.

The one arithmetic of it, for the command line, the Ray session, sweeps and clusters; it needs no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.config.settings import AlgorithmConfig

Bundle = dict[str, float]
"""What one process, or a few that share, takes of one node: `{"CPU": 1, "GPU": 0.5}`."""

DRIVER_CPUS = 1  # of the process that starts the others, and learns unless there are learners apart
DECIMALS = 4  # of a resource in Ray; sums of tenths would be more than there is by their rounding


@dataclass(frozen=True)
class Layout:
    """The processes of a run: the driver, and those that it starts on Ray."""

    driver: Bundle
    workers: tuple[Bundle, ...]
    evaluators: tuple[Bundle, ...]
    learners: tuple[Bundle, ...]  # none where the driver learns by itself

    @property
    def started(self) -> tuple[Bundle, ...]:
        """What each process beside the driver takes."""
        return self.workers + self.evaluators + self.learners

    @property
    def cpus(self) -> float:
        """The CPUs that all processes beside the driver ask Ray for."""
        return total(self.started, "CPU")

    @property
    def gpus(self) -> float:
        """The GPUs that all processes beside the driver ask Ray for."""
        return total(self.started, "GPU")

    @property
    def bundles(self) -> list[Bundle]:
        """What a trial of a sweep reserves: its own process first, then each that takes something."""
        return [self.driver, *(bundle for bundle in self.started if bundle)]


def layout_of(config: AlgorithmConfig) -> Layout:
    """The processes of a configuration; before `num_workers: auto` is resolved, one worker stands for all."""
    is_apart = config.num_learners > 1
    worker = _bundle(cpus_per_worker(config))
    learner = _bundle(config.num_cpus_per_learner, gpus_per_learner(config))
    return Layout(
        driver=_bundle(DRIVER_CPUS, 0 if is_apart else config.num_gpus),
        workers=(worker,) * config.worker_count,
        evaluators=(worker,) * config.evaluation_num_workers,
        learners=(learner,) * (config.num_learners if is_apart else 0),
    )


def cpus_per_worker(config: AlgorithmConfig) -> float:
    """The CPUs of a worker: its own, or those of its environments' ranks, which compute while it waits for them."""
    return max(config.num_cpus_per_worker, config.envs_per_worker * config.env_ranks)


def gpus_per_learner(config: AlgorithmConfig) -> float:
    """The share of the GPUs that each learner gets."""
    return config.num_gpus / config.num_learners


def workers_in(config: AlgorithmConfig, cpus: float) -> int:
    """How many workers this many CPUs are enough for, beside learners and evaluation; one per CPU if they take none.

    `max_concurrent_envs` may allow for fewer.
    """
    layout = layout_of(config)
    left = cpus - total(layout.evaluators + layout.learners, "CPU")
    fit = int(round(left / (cpus_per_worker(config) or 1), DECIMALS))
    if config.max_concurrent_envs is not None:
        fit = min(fit, (config.max_concurrent_envs - config.num_envs_beside_training) // config.envs_per_worker)
    return max(0, fit)


def fits(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether all bundles find a place on the empty nodes, the largest first."""
    left = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda each: (-each.get("GPU", 0.0), -each.get("CPU", 0.0))):
        for node in left:
            if all(node.get(name, 0.0) >= count for name, count in bundle.items()):
                for name, count in bundle.items():
                    node[name] -= count
                break
        else:
            return False
    return True


def total(bundles: tuple[Bundle, ...] | list[Bundle], name: str) -> float:
    """How much of a resource all of them take."""
    return round(sum(bundle.get(name, 0.0) for bundle in bundles), DECIMALS)


def _bundle(cpus: float, gpus: float = 0.0) -> Bundle:
    return {name: float(count) for name, count in (("CPU", cpus), ("GPU", gpus)) if count}
