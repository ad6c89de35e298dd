"""Search spaces: found where they stand, checked, and drawn within their bounds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shoal.config.search_spaces import (
    KINDS,
    Setting,
    combinations,
    drawn,
    extremes,
    find_settings,
    fitted,
    setting_text,
)

GOOD: dict[str, tuple[Any, ...]] = {
    "grid_search": (1, 2),
    "choice": ([32], None, "tanh"),
    "uniform": (0.0, 1.0),
    "loguniform": (1e-5, 1e-2),
    "quniform": (0.0, 1.0, 0.25),
    "qloguniform": (0.25, 16.0, 0.25),
    "randint": (1, 5),
    "lograndint": (4, 65),
    "qrandint": (64, 512, 64),
    "normal": (1.0, 0.1),
}


def found(**config: Any) -> tuple[list[Setting], list[str]]:
    return find_settings({"name": "x", "stop": {"timesteps_total": 1}, "config": config})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_found_and_drawn_within_its_bounds(kind: str) -> None:
    (setting,), problems = found(env_config={"deep": {"key": {kind: list(GOOD[kind])}}})
    assert not problems
    assert setting == Setting("config.env_config.deep.key", kind, GOOD[kind])
    chance = random.Random(1)
    ends = extremes(setting)
    for _ in range(200):
        value = drawn(setting, chance)
        if kind in ("grid_search", "choice"):
            assert value in GOOD[kind]
            continue
        assert fitted(setting, value) == value
        assert isinstance(value, int) == KINDS[kind].is_whole
        assert kind == "normal" or ends[0] <= value <= ends[1]
        if KINDS[kind].has_step:
            assert value / GOOD[kind][2] == pytest.approx(round(value / GOOD[kind][2]))
    assert setting_text(setting).startswith(kind)


def test_what_randomize_draws_is_the_environments_own() -> None:
    options = {"wind": {"uniform": [0, 10]}, "mass": {"normal": [1, 0.1]}}
    assert found(randomize={"options": options}) == ([], [])
    (setting,), problems = found(randomize={"options": {"grid_search": [{}, options]}})
    assert not problems
    assert (setting.path, setting.args) == ("config.randomize.options", ({}, options))


def test_a_mapping_with_more_keys_is_no_search() -> None:
    assert found(env_config={"noise": {"uniform": [0, 1], "of": "wind"}, "choice": [1, 2]}) == ([], [])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"lr": {"grid_search": []}}, "config.lr: has no values to try"),
        ({"lr": {"grid_search": 3}}, "must be {grid_search: [a, b, c]}"),
        ({"lr": {"choice": [1, 2, 1]}}, "has a value twice"),
        ({"lr": {"uniform": [1]}}, "must be {uniform: [low, high]}"),
        ({"lr": {"uniform": [2, 1]}}, "its first number must be lower"),
        ({"lr": {"uniform": ["a", 1]}}, "with finite numbers"),
        ({"lr": {"uniform": [0, float("inf")]}}, "with finite numbers"),
        ({"lr": {"loguniform": [0, 1]}}, "must be more than 0"),
        ({"lr": {"randint": [0.5, 2]}}, "with whole numbers"),
        ({"lr": {"quniform": [0, 1, 0.3]}}, "multiples of its step"),
        ({"lr": {"quniform": [0, 1, 2]}}, "its step must be"),
        ({"lr": {"normal": [0, 0]}}, "its standard deviation must be more than 0"),
        ({"lr": {"sample_from": "lambda spec: 1"}}, "sample_from would run code"),
        ({"randomize": {"options": {"x": {"sample_from": "f"}}}}, "sample_from would run code"),
        ({"seed": {"grid_search": [1, 2]}}, "config.seed: is not ranked but averaged over; set seeds: 3"),
        ({"model": {"fcnet_hiddens": [{"choice": [32, 64]}, 64]}}, "let the whole list be chosen"),
        ({"env_config": {"a/b": {"choice": [1, 2]}}}, "no dot and no slash"),
    ],
)
def test_what_is_wrong_is_told(config: dict[str, Any], problem: str) -> None:
    settings, (sentence,) = found(**config)
    assert not settings
    assert problem in sentence


@pytest.mark.parametrize("key", ["stop", "checkpoint_freq", "name"])
def test_what_all_trials_share_is_not_searched(key: str) -> None:
    _, (sentence,) = find_settings({key: {"choice": [1, 2]}})
    assert sentence.startswith(f"{key}: is the same for all trials")


def test_extremes_are_combined_or_tried_one_at_a_time() -> None:
    settings = [Setting("a", "choice", (1, 2, 3)), Setting("b", "uniform", (0.0, 1.0))]
    assert len(list(combinations(settings, 6))) == 6
    few = list(combinations(settings, 5))
    assert few == [{"a": 1, "b": 0.0}, {"a": 2, "b": 0.0}, {"a": 3, "b": 0.0}, {"a": 1, "b": 1.0}]
