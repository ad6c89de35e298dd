from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from shoal.envs.repeated import Repeated
from shoal.envs.space_trees import space_from, space_tree

SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([-1.1, -np.inf, 0], np.float32), np.array([1.3, 5, np.inf], np.float32)),
    spaces.Box(0, 255, (84, 84, 3), np.uint8),
    spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    spaces.Box(0.5, 1, ()),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 3, 3]),
    spaces.MultiDiscrete([[2, 5], [4, 4]], start=[[1, 0], [0, 2]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Sequence(spaces.Discrete(3), stack=True),
    Repeated(spaces.Dict(kind=spaces.Discrete(3), where=spaces.Box(-1, 1, (2,))), 7),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.MultiBinary(1)]))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_survives_json(space: spaces.Space) -> None:
    again = space_from(json.loads(json.dumps(space_tree(space), allow_nan=False)))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


def test_the_bounds_of_an_image_are_short() -> None:
    assert len(json.dumps(space_tree(SPACES[3]))) < 100


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict(a=spaces.Text(3)), spaces.Sequence(spaces.Text(3))])
def test_what_is_not_known_is_nothing(space: spaces.Space) -> None:
    assert space_tree(space) is None
