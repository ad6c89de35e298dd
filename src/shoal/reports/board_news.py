"""What the list of a board is told: all runs at first, then those that have changed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.config.problems import printable
from shoal.data.number_text import number_text
from shoal.data.results import is_number
from shoal.errors import ConfigError
from shoal.machine.memory import bytes_text
from shoal.reports.labels import value_text
from shoal.reports.run_choice import Condition, names_of
from shoal.reports.run_list import RETURN, ListedRun, damaged_text
from shoal.reports.watched_runs import Sight, WatchedRuns


class ListNews:
    """What one page of the list knows already; `columns` and the condition `where` are what it asks for."""

    def __init__(self, root: WatchedRuns, columns: Sequence[str], where: str) -> None:
        self._root, self._columns, self._where = root, columns, where
        self._told: Mapping[str, ListedRun] | None = None
        self._others: list[Any] = []
        self._names: set[str] = set()
        self._condition: Condition | None = None
        self._meets: dict[str, bool] = {}

    def since_last(self, sight: Sight) -> dict[str, Any] | None:
        """The message about a look; None if there is no news."""
        told = self._told or {}
        changed = {at: run for at, run in sight.runs.items() if told.get(at) is not run}
        gone = [at for at in told if at not in sight.runs]
        sweeps = [{"at": at, "name": shown_name(place, self._root.folder)} for at, place in sight.sweeps.items()]
        names = [shown_name(path, self._root.folder) for path in sight.damaged]
        damaged = damaged_text(names) if names else ""
        if self._told is not None and not changed and not gone and [sweeps, damaged] == self._others:
            return None
        rows = [self._row(at, run) for at, run in changed.items()]
        message = {"now": time.time(), "rows": rows, "gone": gone, "sweeps": sweeps, "damaged": damaged}
        new = set(names_of(changed.values())) - self._names
        if new:
            self._names |= new
            message["names"] = sorted(printable(name) for name in self._names)
        if self._where:
            message |= self._chosen(sight.runs, changed, bool(new))
        self._told, self._others = dict(sight.runs), [sweeps, damaged]
        return message

    def _chosen(
        self, runs: Mapping[str, ListedRun], changed: Mapping[str, ListedRun], has_new_names: bool
    ) -> dict[str, Any]:
        """Which runs meet the condition; only of those that have changed it is asked again."""
        found: dict[str, Any] = {}
        if self._condition is None or has_new_names:
            self._meets, found["problem"] = {}, ""
            try:
                self._condition = Condition(self._where, self._names)
            except ConfigError as error:
                self._condition = None
                found["problem"] = printable(str(error).removeprefix("--where: "))
        known = {at: is_met for at, is_met in self._meets.items() if at not in changed}
        condition = self._condition
        self._meets = {
            at: known[at] if at in known else condition is None or condition.holds_for(run) for at, run in runs.items()
        }
        return {**found, "meets": [at for at, is_met in self._meets.items() if is_met]}

    def _row(self, key: str, run: ListedRun) -> dict[str, Any]:
        """A run as the list shows it: texts, and beside each the value that it is sorted by."""
        last = run.progress.last
        values = run.values if self._columns else {}
        name = shown_name(run.path, self._root.folder)
        steps = last.get("timesteps_total", 0)
        cells = [
            [run.state + " *" * run.is_resumable, run.state],
            [name, name],
            [number_text(run.progress.best), run.progress.best],
            [number_text(last.get(RETURN)), last.get(RETURN)],
            [f"{int(steps):,}", steps],
            ["", run.changed],
            [bytes_text(run.size), run.size],
            [_text(run.algorithm)] * 2,
            [_text(run.env)] * 2,
            *(_cell(values.get(column)) for column in self._columns),
        ]
        return {"at": self._root.address(run.path), "key": key, "name": name, "state": run.state, "cells": cells}


def shown_name(path: Path, folder: Path) -> str:
    """A run or a sweep as people read it: its path from the folder."""
    return printable(path.name if path == folder else os.path.relpath(path, folder))


def _text(value: Any) -> str:
    return printable(str(value))[:200]


def _cell(value: Any) -> list[Any]:
    if is_number(value):
        return [number_text(value), value]
    text = "-" if value is None else _text(value_text(value))
    return [text, None if value is None else text]
