from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.config.experiment import as_tree, experiment_from
from shoal.config.schedules import levels, schedule
from shoal.data.returns import scheduled
from shoal.errors import ConfigError

LINEAR = [[0, 1.0], [100, 0.5], [200, 0.0]]
STEP = {"type": "step", "endpoints": [[0, 1.0], [100, 0.1]]}
EXPONENTIAL = {"type": "exponential", "initial": 1.0, "final": 0.01, "timesteps": 100}
COSINE = {"type": "cosine", "initial": 1.0, "final": 0.0, "timesteps": 100}


@pytest.mark.parametrize(
    ("value", "timestep", "wanted"),
    [
        (None, 10**9, 7.0),
        ([[0, 3.0]], 5, 3.0),
        (LINEAR, 0, 1.0),
        (LINEAR, 50, 0.75),
        (LINEAR, 10**9, 0.0),
        (STEP, 0, 1.0),
        (STEP, 99, 1.0),
        (STEP, 100, 0.1),
        (STEP, 10**9, 0.1),
        (EXPONENTIAL, 0, 1.0),
        (EXPONENTIAL, 50, 0.1),
        (EXPONENTIAL, 10**9, 0.01),
        (COSINE, 0, 1.0),
        (COSINE, 25, (1 + 2**-0.5) / 2),
        (COSINE, 50, 0.5),
        (COSINE, 10**9, 0.0),
    ],
)
def test_the_value_now(value: Any, timestep: int, wanted: float) -> None:
    assert scheduled(7.0, schedule(value), timestep) == pytest.approx(wanted)


def test_the_levels_begin_with_the_first() -> None:
    assert levels(schedule(LINEAR)) == [1.0, 0.5, 0.0]
    assert levels(schedule(STEP)) == [1.0, 0.1]
    assert levels(schedule(EXPONENTIAL)) == [1.0, 0.01]


@pytest.mark.parametrize("value", [LINEAR, STEP, EXPONENTIAL, COSINE], ids=["linear", "step", "exponential", "cosine"])
def test_a_schedule_survives_a_file(value: Any) -> None:
    config = {"lr_schedule": value, "entropy_coeff_schedule": value, "clip_param_schedule": value}
    first = experiment_from({"env": "X-v0", "config": config})
    assert experiment_from(json.loads(json.dumps(as_tree(first)))) == first


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "linear"}, "its type must be exponential, cosine or step"),
        ({"initial": 1}, "its type must be exponential, cosine or step"),
        ({"type": ["step"]}, "its type must be exponential, cosine or step"),
        ({"type": "step"}, "with type step it must have endpoints, and nothing else"),
        ({**STEP, "initial": 1}, "with type step it must have endpoints, and nothing else"),
        ({"type": "step", "endpoints": [[5, 1]]}, "its steps must start at 0 and ascend"),
        ({"type": "step", "endpoints": 3}, "must be a list of [step, value] pairs"),
        ({"type": "cosine", "initial": 1, "final": 0}, "it must have initial and final and timesteps"),
        ({**COSINE, "final": -1}, "its values must be at least 0"),
        ({**EXPONENTIAL, "final": 0}, "its values must be above 0"),
        ({**COSINE, "initial": "x"}, "must be a number"),
        ({**COSINE, "timesteps": 0}, "its timesteps must be at least 1"),
        ({**COSINE, "timesteps": 1.5}, "must be a whole number"),
    ],
)
def test_a_wrong_schedule_is_refused_with_a_sentence(value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from({"env": "X-v0", "config": {"lr_schedule": value}})
    (problem,) = caught.value.problems
    assert problem.startswith("config.lr_schedule: ")
    assert words in problem
