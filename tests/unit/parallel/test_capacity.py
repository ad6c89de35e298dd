"""What a configuration takes is known before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.experiment import algorithm_config
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError
from shoal.parallel import capacity
from shoal.parallel.capacity import check_machine, check_network, least_parameters


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores and 8 GB."""
    monkeypatch.setattr(capacity, "cores", lambda: 2)
    monkeypatch.setattr(capacity, "available_memory", lambda: 8 * 10**9)


def config(**keys: Any) -> AlgorithmConfig:
    return algorithm_config("PPO", {"env": "CartPole-v1", **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"num_workers": 32},
        {"num_workers": 100, "num_cpus_per_worker": 0.3},
        {"num_workers": 100, "num_cpus_per_worker": 0},
        {"num_workers": 30, "num_learners": 2},
    ],
)
def test_workers_may_share_cores(keys: dict[str, Any]) -> None:
    check_machine(config(**keys))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"num_workers": 1000},
            r"config.num_workers: 1,000 processes that ask for 1000 CPUs are too many for 2 cores .*; "
            r"use num_workers: 32, or auto; or num_cpus_per_worker: 0.032 if they wait",
        ),
        ({"num_workers": 32, "num_learners": 2}, "use num_workers: 30, or auto"),
        ({"num_workers": 1, "evaluation_num_workers": 40}, "config.evaluation_num_workers: 41 processes"),
        (
            {"num_workers": 1000, "num_cpus_per_worker": 0.001},
            r"1,000 processes take at least 63 GB of memory and 8.0 GB are free; use num_workers: 126",
        ),
    ],
)
def test_but_not_without_end(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_machine(config(**keys))


def test_what_the_advice_says_is_taken() -> None:
    check_machine(config(num_workers=1000, num_cpus_per_worker=0.032).model_copy(update={"num_workers": 126}))
    check_machine(config(num_workers=126, num_cpus_per_worker=0.001))


def test_parameters_between_hidden_layers() -> None:
    assert least_parameters(config(model={"fcnet_hiddens": [100, 10, 5]})) == 2 * 1050
    assert least_parameters(config(model={"fcnet_hiddens": [100, 10, 5], "vf_share_layers": True})) == 1050
    assert least_parameters(config(model={"fcnet_hiddens": [7]})) == 0
    assert least_parameters(config(model={"use_lstm": True, "lstm_cell_size": 10, "fcnet_hiddens": [1]})) == 800


def test_a_network_that_memory_cannot_hold_is_refused() -> None:
    wide = {"fcnet_hiddens": [10_000, 20_000]}  # 400 million parameters
    check_network(config(model=wide), is_private=True)
    with pytest.raises(ConfigError, match=r"model.fcnet_hiddens: a network of 400,000,000 parameters takes 9.6 GB"):
        check_network(config(model=wide, num_workers=2), is_private=True)
    check_network(config(model=wide, num_workers=2), is_private=False)
