"""Which number and folder a trial has, also when Tune has forgotten it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from shoal.config.sweep import Sweep
from shoal.data.results import plain_json
from shoal.reports.records import TrialRecord, new_record
from shoal.tune.ray_spaces import first_seed, settings_of

_current: list[TrialIds] = []


class TrialIds:
    """Gives every new trial its number, and one that was begun in an earlier life of the sweep the number it had.

    Tune asks for a trial's name as soon as it has made the trial. It also copies and pickles who it asks, and a pickled
    one that is read back in another process must be the one of that process.
    """

    def __init__(self, sweep: Sweep, records: Iterable[TrialRecord], together: bool = False) -> None:
        self._sweep = sweep
        self._together = sweep.seeds if together else 1  # of our trials that are one to Tune
        self._groups: dict[str, int] = {}
        self.records = {
            record.index: replace(record, group=self._group(record.index, _first(record))) for record in records
        }
        self._free = {number: _key(_first(record), record.seed) for number, record in self.records.items()}
        _current[:] = [self]

    def claim(self, trials: Iterable[Any]) -> None:
        """Mark the trials that Tune remembers."""
        for trial in trials:
            self._take(int(str(trial)), *self._parts(trial))

    def __call__(self, trial: Any) -> str:
        """The name of a new trial: its number in five digits."""
        settings, seed = self._parts(trial)
        key = _key(settings, seed)
        number = next((number for number, free in self._free.items() if free == key), None)
        if number is None:
            number = max(self.records, default=-1) + 1
            number += -number % self._together  # one whose records were not all written keeps their numbers
        elif self.records[number].exploits:
            trial.config.update(self.records[number].settings)
        self._take(number, settings, seed)
        return f"{number:05d}"

    def members(self, number: int) -> range:
        """The numbers of all trials that are this one to Tune."""
        return range(number, number + self._together)

    def settings_of(self, trial: Any) -> dict[str, Any]:
        """What was chosen for one of Tune's trials."""
        sweep = self._sweep if self._together == 1 else replace(self._sweep, seeds=1)
        return settings_of(sweep, trial.config)[0]

    @property
    def in_order(self) -> list[TrialRecord]:
        """All records, in order of their number."""
        return [self.records[number] for number in sorted(self.records)]

    def change(self, number: int, **changes: Any) -> TrialRecord:
        """Put a changed record in the place of a trial's."""
        self.records[number] = replace(self.records[number], **changes)
        return self.records[number]

    def _parts(self, trial: Any) -> tuple[dict[str, Any], int | None]:
        if self._together > 1:
            return plain_json(self.settings_of(trial)), first_seed(self._sweep)
        settings, seed = settings_of(self._sweep, trial.config)
        return plain_json(settings), seed

    def _take(self, number: int, settings: dict[str, Any], seed: int | None) -> None:
        """Give these numbers to one of Tune's trials."""
        for k, member in enumerate(self.members(number)):
            if member not in self.records:
                self._add(member, settings, None if seed is None else seed + k)
            self._free.pop(member, None)

    def _add(self, number: int, settings: dict[str, Any], seed: int | None) -> None:
        self.records[number] = new_record(number, self._group(number, settings), settings, seed)

    def _group(self, number: int, settings: Mapping[str, Any]) -> int:
        if self._sweep.seeds == 1:
            return number
        return self._groups.setdefault(_key(settings, None), len(self._groups))

    def __deepcopy__(self, _: Any) -> TrialIds:
        return self

    def __reduce__(self) -> tuple[Callable[[], TrialIds], tuple[()]]:
        return _this_process, ()


def _this_process() -> TrialIds:
    return _current[0]


def _first(record: TrialRecord) -> dict[str, Any]:
    return record.first_settings or record.settings


def _key(settings: Mapping[str, Any], seed: int | None) -> str:
    return json.dumps([plain_json(settings), seed], sort_keys=True)
