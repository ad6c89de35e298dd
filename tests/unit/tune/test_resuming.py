"""A sweep that goes on keeps what its trials have, and takes over nothing twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal.config.experiment import as_tree
from shoal.config.overrides import Override
from shoal.config.sweep import Sweep, experiment_with, sweep_from
from shoal.runs.resuming import FREE_KEYS, settings


def sweep(overrides: Sequence[Override] = (), **words: Any) -> Sweep:
    config = {"env": "CartPole-v1", "lr": shoal.tune.loguniform(1e-5, 1e-1)}
    return sweep_from({"name": "test", "config": config, "stop": {"training_iteration": 1}, **words}, overrides)


def test_a_copy_that_was_taken_over_is_not_taken_over_again(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune")
    from shoal.tune.trial import RunTrial

    settings = {"config.lr": 0.002}
    (tmp_path / "shoal.json").write_text(json.dumps({"trial": 0, "copy": "handed/000001_checkpoint_000120"}))
    exploit = {"training_iteration": 120, "timesteps_total": 9, "source": 0, "settings": settings}
    (tmp_path / "exploits.json").write_text(json.dumps([{**exploit, "checkpoint": "000001_checkpoint_000120"}]))
    taken: list[str] = []
    trial: Any = RunTrial.__new__(RunTrial)
    trial.number, trial.folder, trial.run = 1, tmp_path, SimpleNamespace(take_over=lambda copy: taken.append(copy.name))
    trial.settings = settings
    trial.load_checkpoint(tmp_path)
    assert not taken, "Tune hands the same copy to every new process of the trial"
    trial.settings = {"config.lr": 0.001}
    trial.load_checkpoint(tmp_path)
    assert taken == ["000001_checkpoint_000120"]


def test_a_sweep_that_cannot_go_on_is_not_removed(tmp_path: Path) -> None:
    from shoal.tune.sweep_run import SweepRun

    folder = tmp_path / "test" / "sweep_00000_2026-01-01_00-00-00"
    (folder / "trials" / "00000" / "checkpoint_000099").mkdir(parents=True)
    SweepRun(sweep(), folder)._forget()
    assert folder.exists()
    shutil.rmtree(folder / "trials")
    SweepRun(sweep(), folder)._forget()
    assert not folder.exists()


@pytest.mark.parametrize("search", ["random", "optuna"])
def test_how_many_run_at_once_is_up_to_the_command_that_goes_on(search: str) -> None:
    pytest.importorskip("ray.tune")
    if search != "random":
        pytest.importorskip(search)
    from shoal.tune.ray_searchers import make_search

    before, after = (make_search(sweep(search_alg=search), count) for count in (5, 2))
    after.set_state(before.get_state())
    assert after.max_concurrent == 2  # type: ignore[union-attr]


def opened(what: Sweep, function: str | None = None) -> Path:
    """The folder that a command with this sweep works in, with the sweep written down as when it starts."""
    from shoal.reports.records import write_sweep
    from shoal.tune.sweep_run import SweepRun

    run = SweepRun.open(what)
    write_sweep(run.folder, what, run.user_code, function)
    return run.folder


FREE = [
    ("checkpoint_freq", 7),
    ("checkpoint_at_end", False),
    ("keep_checkpoints_num", 2),
    ("checkpoint_score_attr", "episode_reward_mean"),
    ("report", False),
    ("loggers", ["trackio"]),
    ("config.log_level", "DEBUG"),
    ("config.record_env", True),
    ("config.render_env", True),
]


def test_each_key_that_is_free_in_a_run_is_tried_below() -> None:
    assert {key for key, _ in FREE} == set(FREE_KEYS) - {"name", "preset", "results_dir", "search_path", "mark", "stop"}


@pytest.mark.parametrize(("key", "value"), FREE)
def test_what_is_free_in_a_run_that_goes_on_is_free_in_a_sweep(tmp_path: Path, key: str, value: Any) -> None:
    before = sweep(results_dir=str(tmp_path))
    after = sweep([(key, value)], results_dir=str(tmp_path))
    runs = [settings(as_tree(experiment_with(each, {"config.lr": 1e-3}, None))) for each in (before, after)]
    assert runs[0] == runs[1]
    assert opened(before) == opened(after)


@pytest.mark.parametrize(("key", "value"), [("config.gamma", 0.8), ("stop", {"training_iteration": 2}), ("seeds", 2)])
def test_another_description_is_another_sweep(tmp_path: Path, key: str, value: Any) -> None:
    before = sweep(results_dir=str(tmp_path))
    after = sweep([(key, value)], results_dir=str(tmp_path))
    assert opened(before) != opened(after)


def test_no_key_of_a_functions_config_is_free(tmp_path: Path) -> None:
    """Only the user knows what they do."""
    trees = [{"config": {"log_level": level, "x": shoal.tune.choice([1, 2])}} for level in (1, 2)]
    first, other = (sweep_from({**tree, "results_dir": str(tmp_path)}, check_experiment=False) for tree in trees)
    assert opened(first, "hill") == opened(first, "hill")
    assert opened(first, "hill") != opened(other, "hill")


def test_licences_are_for_all_trials_together(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune")
    from shoal.tune.sweep_run import SweepRun

    def at_once(**config: Any) -> int | None:
        lr = shoal.tune.loguniform(1e-5, 1e-1)
        return SweepRun(sweep(config={"env": "CartPole-v1", "lr": lr, **config}), tmp_path)._most_licensed()

    assert at_once() is None
    assert at_once(max_concurrent_envs=20) == 2  # of eight environments each
    assert at_once(max_concurrent_envs=20, num_envs_per_worker=shoal.tune.choice([1, 5])) == 4
    assert at_once(max_concurrent_envs=20, evaluation_interval=1, evaluation_duration=4) == 1
