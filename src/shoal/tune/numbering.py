"""Which number and folder a trial has, also when Tune has forgotten it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from shoal.config.sweep import Sweep
from shoal.runs.reporters import plain_json
from shoal.tune.records import TrialRecord, trial_folder
from shoal.tune.spaces import settings_of

_current: list[Numbering] = []


class Numbering:
    """Gives every new trial its number, and one that was begun in an earlier life of the sweep the number it had.

    Tune asks for a trial's name as soon as it has made the trial. It also copies and pickles who it asks, and a pickled
    one that is read back in another process must be the one of that process.
    """

    def __init__(self, sweep: Sweep, records: Iterable[TrialRecord]) -> None:
        self.records: list[TrialRecord] = list(records)
        self._sweep = sweep
        first = {record.index: record.first_settings or record.settings for record in self.records}
        self._free = {record.index: _key(first[record.index], record.seed) for record in self.records}
        self._groups = {_key(first[record.index], None): record.group for record in self.records}
        _current[:] = [self]

    def claim(self, names: Iterable[str]) -> None:
        """Mark the trials that Tune remembers."""
        for name in names:
            self._free.pop(int(name), None)

    def __call__(self, trial: Any) -> str:
        """The name of a new trial: its number in five digits."""
        settings, seed = settings_of(self._sweep, trial.config)
        settings = plain_json(settings)
        key = _key(settings, seed)
        number = next((number for number, free in self._free.items() if free == key), None)
        if number is not None:
            del self._free[number]
            if self.records[number].exploits:
                trial.config.update(self.records[number].settings)
            return f"{number:05d}"
        number = len(self.records)
        group = self._groups.setdefault(_key(settings, None), len(self._groups))
        self.records.append(
            TrialRecord(number, group, settings, seed, folder=trial_folder(number), first_settings=settings)
        )
        return f"{number:05d}"

    def change(self, number: int, **changes: Any) -> TrialRecord:
        """Put a changed record in the place of a trial's."""
        self.records[number] = replace(self.records[number], **changes)
        return self.records[number]

    def __deepcopy__(self, _: Any) -> Numbering:
        return self

    def __reduce__(self) -> tuple[Callable[[], Numbering], tuple[()]]:
        return _this_process, ()


def _this_process() -> Numbering:
    return _current[0]


def _key(settings: Mapping[str, Any], seed: int | None) -> str:
    return json.dumps([plain_json(settings), seed], sort_keys=True)
