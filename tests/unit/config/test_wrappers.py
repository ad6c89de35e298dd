from __future__ import annotations

import functools

import pytest

from shoal.config.experiment import (
    algorithm_config,
    config_tree,
    experiment_from,
    experiment_yaml,
    experiments_from_file,
)
from shoal.config.wrappers import parse_wrap
from shoal.errors import ConfigError


class Own:
    """Stands for a wrapper of the user's own."""


def listed(*items) -> list:
    return config_tree(algorithm_config("PPO", {"env": "CartPole-v1", "wrappers": list(items)}))["wrappers"]


@pytest.mark.parametrize(
    ("words", "item"),
    [
        ("FlattenObservation", "FlattenObservation"),
        ("FrameStackObservation:stack_size=4", {"FrameStackObservation": {"stack_size": 4}}),
        ("Filter:filter_keys=[image,direction]", {"Filter": {"filter_keys": ["image", "direction"]}}),
        ("A:a=[1, [2, 3]],b={c: 1, d: 2},e='x,y'", {"A": {"a": [1, [2, 3]], "b": {"c": 1, "d": 2}, "e": "x,y"}}),
        ("my_module:Scale", "my_module:Scale"),
        ("my_module:Scale:factor=1e-2", {"my_module:Scale": {"factor": 0.01}}),
        ("./my_file.py:Scale:path=/a:b=c", {"./my_file.py:Scale": {"path": "/a:b=c"}}),
        (" A:a = 1 , b=2", {"A": {"a": 1, "b": 2}}),
    ],
)
def test_wrap_as_it_is_typed(words: str, item) -> None:
    assert parse_wrap(words) == item


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", r"--wrap : write NAME or NAME:key=value"),
        ("A:a=1,b", r"--wrap A:a=1,b: write NAME or NAME:key=value"),
        ("A:a=1,b=", r"write NAME or NAME:key=value"),
        ("A:a=1,a=2", r"a is given twice"),
        ("A:a=[1", r"--wrap A: a: "),
    ],
)
def test_wrap_that_cannot_be_read(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_wrap(words)


def test_the_list_is_written_in_its_shortest_form() -> None:
    assert listed("A", {"B": {"b": [1, 2]}}, {"C": None}, {"D": {}}) == ["A", {"B": {"b": [1, 2]}}, "C", "D"]
    own = f"{__name__}:Own"
    assert listed(Own, {Own: {"a": 1}}, functools.partial(Own, b=2)) == [own, {own: {"a": 1}}, {own: {"b": 2}}]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("FlattenObservation", r"config\.wrappers: must be a list such as \[FlattenObservation, "),
        ([3], r"config\.wrappers\[0\]: must be a wrapper's name, .* \(got 3\)"),
        (["A", {"A": {}, "B": {}}], r"config\.wrappers\[1\]: must be one wrapper"),
        ([{"TimeLimit": 100}], r"config\.wrappers\[0\]: its arguments must be a mapping"),
        ([{"TimeLimit": {3: 1}}], r"config\.wrappers\[0\]: its keys must be text"),
        ([""], r"config\.wrappers\[0\]: must not be empty"),
    ],
)
def test_lists_that_are_none(value, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        algorithm_config("PPO", {"env": "CartPole-v1", "wrappers": value})


def test_a_file_says_them_and_is_read_back(tmp_path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(
        "a:\n  env: CartPole-v1\n  config:\n    wrappers:\n      - FlattenObservation\n"
        "      - FrameStackObservation: {stack_size: 4}\n      - TimeAwareObservation:\n"
    )
    (experiment,) = experiments_from_file(path)
    wanted = ("FlattenObservation", {"FrameStackObservation": {"stack_size": 4}}, "TimeAwareObservation")
    assert experiment.config.wrappers == wanted
    path.write_text(experiment_yaml(experiment))
    assert experiments_from_file(path)[0].config.wrappers == wanted
    changed = experiment_from({"env": "CartPole-v1"}, [("config.wrappers", [parse_wrap("A:a=1")])])
    assert changed.config.wrappers == ({"A": {"a": 1}},)
