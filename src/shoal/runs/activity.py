"""What a run is doing at this moment, for a view in another thread to read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from shoal.runs.trainer import Trainer

progress = logging.getLogger("shoal.progress")
"""Sentences about what takes its time before the first iteration and after the last, such as `starting 3 workers`."""


@dataclass(frozen=True)
class Activity:
    """One thing that a run does, since when, and how much of it is done."""

    kind: Literal["starting", "training", "evaluating", "closing", "ending"] = "starting"
    iteration: int = 0
    since: float = field(default_factory=monotonic)
    sampled: Callable[[], int] = int  # steps of this iteration so far
    due: int = 0  # steps that the iteration takes in all; 0: nobody knows before
    size_key: str = ""  # the setting that says so
    workers: int = 0


def training(trainer: Trainer) -> Activity:
    """The iteration that a trainer is about to begin."""
    config, workers = trainer.config, trainer.workers
    before = workers.steps_sampled
    return Activity(
        kind="training",
        iteration=trainer.iteration + 1,
        sampled=lambda: workers.steps_sampled - before,
        due=config.steps_per_iteration * config.num_rows,
        size_key=config.batch_key,
        workers=config.worker_count,
    )
