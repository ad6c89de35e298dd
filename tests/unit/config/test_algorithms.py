"""The table of algorithms: what it gives for shoal's own, and what packages may add or get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from any_algorithm import EVERY_ALGORITHM

import shoal
from shoal.config.algorithms import ALGORITHMS, BUILT_IN, Algorithms, algorithm_names, installed_algorithms, name_of
from shoal.config.evolution import EvolutionConfig
from shoal.config.experiment import algorithm_class, experiment_from
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError
from shoal.runs.trainer import TRAINERS

MODULE = """
from shoal.config.ppo import PPOConfig

class Config(PPOConfig):
    learner = "shoal.algorithms.ppo:PPOLearner"
    results = {**PPOConfig.results, "surprise": "how surprised the learner is"}

class Idle(PPOConfig):
    learner = ""

NOTHING = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package with one algorithm, as far as importlib is concerned."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ALGORITHMS, "_loaded", {})
    (tmp_path / "added_algorithm.py").write_text(MODULE)

    def installed(package: str, name: str, place: str) -> None:
        folder = tmp_path / f"{package}-0.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.2\nSummary: Adds one.\n")
        (folder / "entry_points.txt").write_text(f"[shoal.algorithms]\n{name} = {place}\n")

    return installed


def test_shoals_own_are_public_and_say_what_is_asked_of_them() -> None:
    assert set(BUILT_IN) <= set(shoal.__all__)
    for name in BUILT_IN:
        kind = ALGORITHMS[name]
        assert issubclass(kind, AlgorithmConfig)
        assert name_of(kind) == name == getattr(shoal, name).algorithm
        assert ":" in kind.learner
        assert set(kind.mutable) <= set(kind.model_fields)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_learner_reports_what_its_configuration_says(name: str, tmp_path: Path) -> None:
    config = {"num_rollouts": 8} if issubclass(ALGORITHMS[name], EvolutionConfig) else {"train_batch_size": 128}
    if ALGORITHMS[name].learns_from_replay:
        config |= {"timesteps_per_iteration": 64, "learning_starts": 64}
    if ALGORITHMS[name].learns_offline:
        config |= {"input": str(tmp_path)}
        with shoal.PPO(env="CartPole-v1", config={"train_batch_size": 128, "output": str(tmp_path)}) as recording:
            recording.train()
    with getattr(shoal, name)(env="CartPole-v1", config=config) as trainer:
        for _ in range(2 if ALGORITHMS[name].learns_from_replay else 1):
            reported = set(trainer.train()["learner"])
    # Of one kind of exploration, of two kinds of actions, and of training_intensity: auto.
    others = {"cur_stddev", "cur_alpha_choices", "overfit_ratio"}
    assert reported == set(ALGORITHMS[name].results) - others


def test_what_a_package_adds_is_imported_only_when_it_is_named(install) -> None:
    install("added", "ADDED", "added_algorithm:Config")
    (one,) = installed_algorithms()
    assert one == ("ADDED", "added_algorithm:Config", "added 0.2", "Adds one.")
    assert algorithm_names() == [*BUILT_IN, "ADDED"]
    assert list(ALGORITHMS) == list(BUILT_IN)
    tree = {"run": "ADDED", "env": "CartPole-v1", "stop": {"learner/surprise": 3}}
    with pytest.raises(ConfigError, match="learner/surprise: no result has this name"):
        experiment_from({**tree, "run": "PPO"})
    assert experiment_from(tree).stop == {"learner/surprise": 3}
    assert list(ALGORITHMS) == [*BUILT_IN, "ADDED"]
    assert name_of(ALGORITHMS["ADDED"]) == "ADDED"
    assert shoal.ADDED.algorithm == "ADDED"
    del TRAINERS["ADDED"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (
            "no_such_module:Config",
            "cannot be imported from no_such_module:Config (ModuleNotFoundError: No module named",
        ),
        ("added_algorithm:Missing", "cannot be imported from added_algorithm:Missing (AttributeError: "),
        (
            "added_algorithm:NOTHING",
            "added_algorithm:NOTHING must be a subclass of shoal.config.settings.AlgorithmConfig",
        ),
        ("added_algorithm:Idle", "whose class attribute `learner` says where its learner is, as 'module:Class'"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(install, place: str, words: str) -> None:
    install("broken", "ADDED", place)
    with pytest.raises(ConfigError) as error:
        algorithm_class("ADDED")
    assert str(error.value).startswith("run: ADDED of the installed package broken 0.2")
    assert words in str(error.value)
    assert algorithm_class("PPO") is ALGORITHMS["PPO"]


def test_a_name_of_two_packages_is_refused_and_shoals_own_wins(install) -> None:
    install("first", "ADDED", "added_algorithm:Config")
    install("second", "ADDED", "added_algorithm:Config")
    install("third", "PPO", "added_algorithm:Config")
    with pytest.raises(ConfigError, match=r"in more than one installed package, first 0.2 and second 0.2; uninstall"):
        algorithm_class("ADDED")
    assert Algorithms()["PPO"] is algorithm_class("PPO")


def test_a_name_that_nobody_has_is_refused_with_all_there_are(install) -> None:
    install("added", "ADDED", "added_algorithm:Config")
    with pytest.raises(
        ConfigError,
        match=rf"run: must be {EVERY_ALGORITHM} or ADDED \(got 'ADED'\); did you mean ADDED",
    ):
        algorithm_class("ADED")
