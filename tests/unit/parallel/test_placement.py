"""Which workers a node gets: as many as it has room for, and neighbours together."""

from __future__ import annotations

import pytest

from shoal.parallel.placement import shared_among


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
