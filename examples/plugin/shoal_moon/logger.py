"""A logger: a class with three methods, which are called in a thread of their own."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from shoal.runs.loggers import RunInfo

COLUMNS = ("training_iteration", "timesteps_total", "episode_reward_mean")


class CsvLogger:
    """Writes three numbers of every result to rewards.csv in the run's folder."""

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        self._file = (run.folder / "rewards.csv").open("a", newline="")
        self._rows = csv.writer(self._file)
        if not run.is_resumed:
            self._rows.writerow(COLUMNS)

    def log(self, result: Mapping[str, float]) -> None:
        self._rows.writerow([result.get(name, "") for name in COLUMNS])
        self._file.flush()

    def finish(self, state: str) -> None:
        self._file.close()
