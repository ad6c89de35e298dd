"""Folders of runs that are kept without a run, and the disk that their checkpoints are written to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.config.experiment import experiment_from
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.runs import run_folder
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.run_folder import RunFolder

SOON_S = 30.0  # a machine may be busy


def summary(iteration: int) -> dict[str, float]:
    return {"training_iteration": iteration}


def made(folder: Path, **keys: Any) -> RunFolder:
    keys = {"name": "one", "env": "CartPole-v1", "checkpoint_freq": 2, "keep_checkpoints_num": 2, **keys}
    return RunFolder(folder, experiment_from(keys), UserCode.at(folder))


def note(kept: RunFolder, iteration: int, state: State | None = None) -> None:
    kept.note(summary(iteration), state or State({"iteration": iteration}))


def train(kept: RunFolder, *iterations: int) -> None:
    for iteration in iterations:
        note(kept, iteration)
        kept.save_if_due()


def numbers(folder: Path) -> list[int]:
    return [int(path.name[-6:]) for path in checkpoints_of(folder)]


class Disk:
    """Where checkpoints are written: who writes them, what fails, and what it waits for before and does after."""

    def __init__(self) -> None:
        self.writers: list[str] = []
        self.problems: list[Exception] = []
        self.is_free = threading.Event()
        self.is_free.set()
        self.after: Callable[[], object] = lambda: None
        self._really = run_folder.write_checkpoint

    def __call__(self, *given: Any) -> Path:
        self.writers.append(threading.current_thread().name)
        assert self.is_free.wait(SOON_S)
        if self.problems:
            raise self.problems.pop(0)
        path = self._really(*given)
        self.after()
        return path
