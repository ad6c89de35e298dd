"""Whether two trainers have done the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

TIMES = {"time_this_iter_s", "time_total_s", "timesteps_per_s", "timers", "parallel_efficiency"}
"""Names of results that follow from the clock."""
LAYOUT = {"num_healthy_workers", "num_remote_worker_restarts", "staleness"}
"""Names of results that tell who has sampled."""


def without_times(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result, or the values of a state, without what no two trainings share."""
    return _without(TIMES, result)


def without_times_and_layout(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is the same also with other numbers of workers."""
    return _without(TIMES | LAYOUT, result)


def assert_same_state(mine: Any, theirs: Any) -> None:
    """Two trainers would go on in the same way."""
    one, two = mine.get_state(), theirs.get_state()
    assert without_times(one.values) == without_times(two.values)
    first, second = arrays_of(one), arrays_of(two)
    assert set(first) == set(second)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def arrays_of(state: Any) -> dict[str, np.ndarray]:
    """The arrays of a state, with frames in the place of their ids."""
    arrays = dict(state.arrays)
    for name, ring in state.rings.items():
        for frames in ring.frames.values():
            for key in {f"{name}.{column}.{k}" for column in frames.columns for k in (0, 1)} & {*arrays}:
                ids = arrays[key]
                arrays[key] = frames.store.take(ids.reshape(-1)).reshape(*ids.shape, *frames.store.shape)
    return arrays


def assert_restored_exactly(make: Callable[[], Any], folder: Path, num_iterations: int, num_before: int = 1) -> None:
    """So many iterations, a save, a load into a trainer that has trained, and as many again, are twice as many."""
    whole = make()
    for _ in range(num_iterations):
        whole.train()
    path = whole.save(folder)
    loaded = make()
    for _ in range(num_before):
        loaded.train()
    loaded.restore(path)
    assert_same_state(whole, loaded)
    for _ in range(num_iterations):
        assert without_times(whole.train()) == without_times(loaded.train())
    assert_same_state(whole, loaded)


def _without(names: set[str], tree: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in tree.items() if name not in names}
    return {name: _without(names, value) if isinstance(value, Mapping) else value for name, value in kept.items()}
