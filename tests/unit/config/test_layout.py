"""What a configuration takes, in one arithmetic."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from shoal.config.experiment import algorithm_config
from shoal.config.layout import Layout, layout_of, workers_in
from shoal.config.settings import AlgorithmConfig


def config(**keys: Any) -> AlgorithmConfig:
    return algorithm_config("PPO", {"env": "CartPole-v1", **keys})


def layout(**keys: Any) -> Layout:
    return layout_of(config(**keys))


def test_without_workers_there_is_the_driver_alone() -> None:
    assert layout().bundles == [{"CPU": 1}]
    assert layout(num_gpus=1).bundles == [{"CPU": 1, "GPU": 1}]
    assert (layout(num_gpus=1).cpus, layout(num_gpus=1).gpus) == (0, 0)


def test_workers_evaluation_and_learners_are_added_up() -> None:
    found = layout(num_workers=2, num_cpus_per_worker=0.5, evaluation_num_workers=1, num_learners=2, num_gpus=1)
    assert found.bundles == [{"CPU": 1}, *[{"CPU": 0.5}] * 3, *[{"CPU": 1, "GPU": 0.5}] * 2]
    assert (len(found.started), found.cpus, found.gpus) == (5, 3.5, 1)


def test_who_takes_nothing_is_a_process_but_reserves_nothing() -> None:
    found = layout(num_workers=3, num_cpus_per_worker=0)
    assert (found.bundles, len(found.started), found.cpus) == ([{"CPU": 1}], 3, 0)


def test_one_worker_stands_for_auto() -> None:
    assert len(layout(num_workers="auto").workers) == 1


@pytest.mark.parametrize(
    ("keys", "cpus", "fit"),
    [
        ({}, 4, 4),
        ({"num_cpus_per_worker": 2}, 5, 2),
        ({"num_cpus_per_worker": 0}, 4, 4),
        ({"num_workers": 2, "num_learners": 2, "evaluation_num_workers": 1}, 8, 5),
        ({"num_workers": 2, "num_learners": 2}, 1, 0),
        ({"num_cpus_per_worker": 0.1, "evaluation_num_workers": 3}, 1, 7),
    ],
)
def test_workers_that_fit_beside_the_others(keys: dict[str, Any], cpus: float, fit: int) -> None:
    given = config(**keys)
    assert workers_in(given, cpus) == fit
    if fit and given.num_cpus_per_worker:
        assert layout(**{**keys, "num_workers": fit}).cpus <= cpus


def test_the_arithmetic_needs_no_ray() -> None:
    asked = "import sys, shoal.config.layout; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
