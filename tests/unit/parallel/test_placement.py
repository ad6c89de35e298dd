"""Which workers a node gets: as many as it has room for, and neighbours together."""

from __future__ import annotations

import pytest

from shoal.parallel.placement import places_in, shared_among


@pytest.mark.parametrize(
    ("rooms", "workers", "placed", "wanted"),
    [
        ({"a": 2, "b": 2}, [1, 2, 3, 4], [], {"a": [1, 2], "b": [3, 4]}),
        ({"a": 4}, [1, 2, 3, 4], [], {"a": [1, 2, 3, 4]}),
        ({"a": 2}, [3, 4], ["a", "a"], {}),
        ({"a": 2, "c": 1}, [3, 4], ["a", "a"], {"c": [3]}),
        ({}, [1], [], {}),
    ],
)
def test_rooms_are_filled_in_the_order_of_workers(rooms, workers, placed, wanted) -> None:
    assert shared_among(rooms, workers, placed) == wanted


@pytest.mark.parametrize(
    ("bundles", "cpus", "wanted"),
    [
        ([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}, {"CPU": 2}], 1, [1, 2]),
        ([{"CPU": 1}, {"CPU": 4}], 1, [1, 1]),
        ([{"CPU": 1}, {"CPU": 0.3}, {"GPU": 1}, {"CPU": 0.3}], 0.3, [1, 3]),
        ([{"CPU": 1}], 0, [0, 0]),
    ],
)
def test_workers_of_a_trial_take_bundles_that_have_room_for_them(bundles, cpus, wanted) -> None:
    assert places_in(bundles, cpus, 2) == wanted
