"""Presets lie between the defaults and what the user says, and each of those that are shipped is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import shoal.config.presets as module
from shoal.config.experiment import as_tree, config_tree, experiment_from, experiments_from_file
from shoal.config.presets import Preset, all_presets, flat, unused_preset, value_at
from shoal.config.sweep import experiment_with, sweep_from, sweeps_from_file
from shoal.config.yaml_files import dump_yaml
from shoal.errors import ConfigError
from shoal.runs.preset_notes import preset_note
from shoal.runs.resuming import experiment_of
from shoal.runs.trainer import TRAINERS

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "presets.json"
LEARNING = ("num_envs_per_worker", "train_batch_size", "sgd_minibatch_size", "num_sgd_iter", "lr", "gamma", "lambda_")
FIGURES = {
    "timesteps_total": 1000,
    "episodes": 20,
    "seeds": [0, 1, 2],
    "returns": [9.0, 7.0, 8.0],
    "default_returns": [1.0, 2.0, 3.0],
    "date": "2026-01-01",
    "shoal": "0.1.0",
}
NOISE = {"type": "OrnsteinUhlenbeckNoise", "ou_theta": 0.05}
MINE: dict[str, dict[str, Any]] = {
    "slope_ppo": {
        "env": "Slope-v1",
        "run": "PPO",
        "config": {"lr": 0.002, "gamma": 0.9, "model": {"fcnet_hiddens": [32]}, "exploration_config": NOISE},
    },
    "hill_trpo": {"env": "Hill-v1", "run": "TRPO", "config": {"gamma": 0.9}},
    "pit_ppo": {"env": "Pit-v1", "run": "PPO", "config": {"gamma": 0.9}},
    "pit_wide_ppo": {"env": "Pit-v1", "run": "PPO", "config": {"model": {"fcnet_hiddens": [128]}}},
}
"""Presets that stand for others, for cases that the shipped ones do not have."""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only these presets."""
    for name, tree in MINE.items():
        sweep = {"env": tree["env"], "num_samples": 2, "config": {}}
        (tmp_path / f"{name}.yml").write_text(dump_yaml({**tree, "sweep": sweep, "measured": FIGURES}))
    monkeypatch.setattr(module, "FILES", tmp_path)
    all_presets.cache_clear()
    yield
    all_presets.cache_clear()


def problem(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        experiment_from(tree)
    (sentence,) = caught.value.problems
    return sentence


@pytest.mark.parametrize("name", all_presets())
class TestShipped:
    """What holds for every preset."""

    def test_it_is_an_experiment_and_every_key_is_said(self, name: str) -> None:
        preset = all_presets()[name]
        experiment = experiment_from({"env": preset.env, "run": preset.run, "preset": True})
        assert experiment.preset == name
        assert {path: value_at(experiment.config, path) for path in flat(preset.config)} == flat(preset.config)
        assert set(LEARNING) <= preset.config.keys()
        assert not preset.config.keys() & {"env", "seed", "num_workers", "num_gpus", "log_level"}
        assert unused_preset(preset.env, preset.run, {"seed"}) == preset, "the hint finds it"
        assert unused_preset(preset.env, preset.run, {"lr"}) is None
        assert name.endswith(f"_{preset.run.lower()}")

    def test_its_sweep_can_be_run_again_and_holds_it(self, name: str) -> None:
        preset = all_presets()[name]
        sweep = sweep_from({"name": name, **preset.sweep})
        assert sweep.num_samples > 1
        for setting in sweep.settings:
            assert value_at(preset.config, setting.path.removeprefix("config.")) in setting.args
        first = sweep.tree["config"]["seed"]
        assert not {*range(first, first + sweep.seeds)} & {*preset.measured.seeds}

    def test_its_figures_are_those_of_the_benchmark_and_better_than_the_defaults(self, name: str) -> None:
        kept = json.loads(RESULTS.read_text())["results"][name]
        measured = all_presets()[name].measured.model_dump(mode="json")
        assert {key: kept[key] for key in measured} == measured
        assert len(measured["seeds"]) == len(measured["returns"]) == len(measured["default_returns"]) >= 3
        assert kept["share_of_pairs"] >= 0.75

    def test_it_trains(self, name: str) -> None:
        preset = all_presets()[name]
        try:
            gymnasium.make(preset.env, **preset.config.get("env_config", {})).close()
        except gymnasium.error.Error as error:
            pytest.skip(f"{preset.env} is not installed: {error}")
        with TRAINERS[preset.run](preset.env, {"train_batch_size": 256, "num_sgd_iter": 1}, preset=name) as t:
            assert t.preset == name
            assert t.config.lr == preset.config["lr"]
            assert t.train()["timesteps_total"] >= 256


def test_the_order_is_defaults_preset_and_what_is_said(mine: None) -> None:
    tree = {"env": "Slope-v1", "preset": True, "config": {"gamma": 0.95, "model": {"fcnet_activation": "relu"}}}
    experiment = experiment_from(tree, [("config.clip_param", 0.1)])
    config = experiment.config
    assert (config.lr, config.gamma, config.clip_param) == (0.002, 0.95, 0.1)
    assert (config.model.fcnet_hiddens, config.model.fcnet_activation) == ((32,), "relu")
    assert experiment_from(tree, [("lr", 0.1)]).config.lr == 0.1
    assert tree["preset"] is True, "the caller's own tree is left alone"
    assert "lr" not in tree["config"]


def test_none_is_taken_unless_it_is_asked_for(mine: None) -> None:
    for no in (None, False):
        experiment = experiment_from({"env": "Slope-v1", "preset": no})
        assert experiment.preset is None
        assert experiment.config.lr != 0.002
    assert experiment_from({"env": "Slope-v1"}).preset is None


def test_what_replaces_a_setting_of_another_name(mine: None) -> None:
    schedule = [[0, 1e-3], [1000, 1e-4]]
    scheduled = experiment_from({"env": "Slope-v1", "preset": True, "config": {"lr_schedule": schedule}})
    assert scheduled.config.lr != 0.002
    noise = {"type": "GaussianNoise", "stddev": 0.2}
    noisy = experiment_from({"env": "Slope-v1", "preset": True, "config": {"exploration_config": noise}})
    assert noisy.config.exploration_config.type == "GaussianNoise"
    slower = {"exploration_config": {"ou_theta": 0.01}}
    same = experiment_from({"env": "Slope-v1", "preset": True, "config": slower}).config.exploration_config
    assert (same.type, same.ou_theta) == ("OrnsteinUhlenbeckNoise", 0.01)


def test_the_resolved_experiment_needs_the_preset_no_more(mine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = experiment_from({"env": "Slope-v1", "preset": "slope_ppo"})
    tree = json.loads(json.dumps(as_tree(experiment)))
    assert tree["preset"] == "slope_ppo"
    assert tree["config"]["lr"] == 0.002
    assert config_tree(experiment_from(tree).config) == tree["config"]
    monkeypatch.setattr(module, "all_presets", dict)  # as in a version that has none of that name
    stored, _ = experiment_of({**tree, "search_path": []})
    assert stored.preset == "slope_ppo"
    assert config_tree(stored.config) == tree["config"]


def test_bad_words_are_one_sentence_each(mine: None) -> None:
    assert problem({"env": "Hill-v1", "preset": True}) == (
        "preset: there is none for Hill-v1 with PPO, but with --run TRPO"
    )
    assert problem({"env": "Hill-v1", "preset": "hill_trpo"}) == (
        "preset: hill_trpo is for TRPO; set run: TRPO (got 'PPO')"
    )
    assert problem({"env": "Pit-v1", "preset": True}) == (
        "preset: there are 2 for Pit-v1 with PPO; name one: pit_ppo or pit_wide_ppo"
    )
    assert problem({"env": "Slop-v1", "preset": True}) == (
        "preset: there is none for Slop-v1; did you mean Slope-v1? `shoal presets` lists them"
    )
    assert problem({"env": "Slope-v1", "preset": "slop_ppo"}) == (
        "preset: there is no 'slop_ppo'; did you mean slope_ppo? `shoal presets` lists them"
    )
    assert problem({"env": "Slope-v1", "preset": "Slope-v1"}) == (
        "preset: there is no 'Slope-v1'; did you mean slope_ppo? `shoal presets` lists them"
    )
    assert problem({"env": "own:Env", "preset": "zzz"}) == "preset: there is no 'zzz'; `shoal presets` lists them"
    assert problem({"env": {"command": ["./solver"]}, "preset": True}) == (
        "preset: there is none for this environment; `shoal presets` lists them"
    )
    for wrong in (3, ["slope_ppo"], {"a": 1}):
        assert problem({"env": "Slope-v1", "preset": wrong}).startswith("preset: must be a name, or true for the ")


def test_problems_of_a_file_have_its_line(mine: None, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("first:\n    env: Slope-v1\n    preset: slope\n")
    with pytest.raises(ConfigError, match=r"x\.yaml:3: first\.preset: there is no 'slope'"):
        experiments_from_file(file)
    file.write_text("first:\n    env: Slope-v1\n    preset: true\n")
    assert experiments_from_file(file)[0].preset == "slope_ppo"


def test_sweeps_start_from_a_preset_too(mine: None, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    search = "config: {gamma: {choice: [0.9, 0.99]}, exploration_config: {choice: [{type: StochasticSampling}]}}"
    file.write_text(f"first:\n    env: Slope-v1\n    preset: true\n    stop: {{training_iteration: 2}}\n    {search}\n")
    (sweep,) = sweeps_from_file(file)
    assert sweep.tree["preset"] == "slope_ppo"
    assert sweep.tree["config"]["lr"] == 0.002, "all trials have it, also where the sweep goes on with another version"
    assert {setting.path for setting in sweep.settings} == {"config.gamma", "config.exploration_config"}
    chosen = {"config.gamma": 0.99, "config.exploration_config": {"type": "StochasticSampling"}}
    trial = experiment_with(sweep, chosen, 7)
    assert (trial.preset, trial.config.lr, trial.config.gamma, trial.config.seed) == ("slope_ppo", 0.002, 0.99, 7)
    many = {"env": {"choice": ["Slope-v1", "Pit-v1"]}, "preset": "pit_ppo", "stop": {"training_iteration": 2}}
    assert experiment_with(sweep_from(many), {"config.env": "Pit-v1"}, None).preset == "pit_ppo"


def test_the_line_at_the_start(mine: None) -> None:
    def note(env: str = "Slope-v1", **config: Any) -> str:
        told = preset_note(experiment_from({"env": env, "preset": "slope_ppo", "config": config}))
        assert told is not None
        return told

    sets = "Preset slope_ppo sets lr 0.002, gamma 0.9, model.fcnet_hiddens [32], exploration_config.type "
    sets += "OrnsteinUhlenbeckNoise, exploration_config.ou_theta 0.05"
    reached = "Expect a return of 8 (7 to 9, 3 seeds) in `shoal evaluate` after 1,000 steps; the defaults reach 2."
    assert note() == f"{sets}. {reached}"
    assert note(gamma=0.99) == (
        f"{sets.replace('gamma 0.9, ', '')}; you set gamma 0.99 instead, so its return may not be reached."
    )
    assert note("Pit-v1") == f"{sets}; it was found for Slope-v1, so the return that it reaches here is not known."
    assert preset_note(experiment_from({"env": "Slope-v1"})) is None


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="measured"):
        Preset(name="x", env="X-v1", run="PPO", config={}, sweep={})  # type: ignore[call-arg]
