"""What a scheduler has learned, from one life of a sweep to the next: Tune's own snapshot leaves it out.

It is pickled, as all of Tune's snapshot is, and lies in the same folder. A pickle names modules and classes by their
paths: before 1.0, a sweep is continued by the version of shoal that began it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from ray import cloudpickle
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler


class _Pickler(cloudpickle.Pickler):
    def persistent_id(self, value: Any) -> str | None:
        """A trial goes by its id: Tune keeps the trial itself."""
        return value.trial_id if isinstance(value, Trial) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, trials: Mapping[str, Trial]) -> None:
        super().__init__(file)
        self._trials = trials

    def persistent_load(self, trial_id: Any) -> Trial:
        """The trial as it is in this process."""
        return self._trials[trial_id]


def pickled(scheduler: TrialScheduler) -> bytes:
    """All that the scheduler knows."""
    file = io.BytesIO()
    pickler: Any = _Pickler  # ray's has no types
    pickler(file).dump(vars(scheduler))
    return file.getvalue()


def unpickled(scheduler: TrialScheduler, state: bytes, trials: Mapping[str, Trial]) -> None:
    """Give a scheduler what one of its kind has known."""
    vars(scheduler).update(_Unpickler(io.BytesIO(state), trials).load())
