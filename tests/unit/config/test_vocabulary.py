"""Foreign words are refused with ours, and every word that a message suggests exists."""

from __future__ import annotations

import pytest

from shoal.config.experiment import ALGORITHMS, Experiment, experiment_from
from shoal.config.result_names import result_names
from shoal.config.settings import key_paths
from shoal.config.vocabulary import ELSEWHERE, EXPERIMENT_KEYS, FOREIGN, FOREIGN_RESULTS, SWEEP_KEYS
from shoal.errors import ConfigError

KEYS = {path for algorithm in ALGORITHMS.values() for path in key_paths(algorithm)}
KNOWN = {*EXPERIMENT_KEYS, *SWEEP_KEYS, *KEYS, *(f"stop.{name}" for name in result_names())}


def test_the_keys_of_an_experiment_are_known() -> None:
    assert set(EXPERIMENT_KEYS) == set(Experiment.model_fields) - {"name"}


@pytest.mark.parametrize("word", FOREIGN)
@pytest.mark.parametrize("place", ["experiment", "config"])
def test_a_foreign_word_is_refused_with_the_right_one(word: str, place: str) -> None:
    tree = {"env": "X-v0", word: 1} if place == "experiment" else {"env": "X-v0", "config": {word: 1}}
    with pytest.raises(ConfigError) as caught:
        experiment_from(tree)
    (problem,) = caught.value.problems
    assert "unknown key" in problem
    assert FOREIGN[word] in problem


@pytest.mark.parametrize("word", FOREIGN)
def test_the_suggested_key_exists_and_is_not_the_foreign_one(word: str) -> None:
    assert FOREIGN[word] in KNOWN or " " in FOREIGN[word]
    assert word not in {path.rpartition(".")[2] for path in KNOWN}


@pytest.mark.parametrize("word", ELSEWHERE)
def test_a_word_of_another_algorithm_is_refused_with_that_of_this_one(word: str) -> None:
    meant = ELSEWHERE[word]
    run = "SAC" if meant == "config.initial_alpha" else "DQN"
    with pytest.raises(ConfigError, match=meant if " " in meant else f"did you mean {meant}"):
        experiment_from({"env": "X-v0", "run": run, "config": {word: 1}})
    with pytest.raises(ConfigError, match=r"another algorithm has config\.replay_buffer_config\.capacity"):
        experiment_from({"env": "X-v0", "config": {"buffer_size": 1}})


@pytest.mark.parametrize("word", FOREIGN_RESULTS)
def test_a_foreign_stop_criterion_is_refused_with_the_right_one(word: str) -> None:
    assert FOREIGN_RESULTS[word] in result_names()
    with pytest.raises(ConfigError, match=f"did you mean {FOREIGN_RESULTS[word]}"):
        experiment_from({"env": "X-v0", "stop": {word: 1}})


@pytest.mark.parametrize(
    ("run", "key", "owners"),
    [("PPO", "max_kl", "TRPO"), ("TRPO", "clip_param", "PPO and APPO"), ("PPO", "max_staleness", "APPO")],
)
def test_a_key_of_another_algorithm_is_refused_with_whose_it_is(run: str, key: str, owners: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment_from({"env": "X-v0", "run": run, "config": {key: 0.1, "lr": -1}})
    assert sorted(caught.value.problems) == sorted(
        [
            f"config.{key}: is a key of {owners}, not of {run}; leave it out, or set run: {owners.split()[0]}",
            "config.lr: must be more than 0 (got -1)",
        ]
    )
