"""A sweep that goes on keeps what its trials have, and takes over nothing twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal.config.sweep import sweep_from


def sweep(**words: Any) -> Any:
    config = {"env": "CartPole-v1", "lr": shoal.tune.loguniform(1e-5, 1e-1)}
    return sweep_from({"name": "test", "config": config, "stop": {"training_iteration": 1}, **words})


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
    from shoal.tune.sweeping import SweepRun

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
    from shoal.tune.searchers import make_search

    before, after = (make_search(sweep(search_alg=search), count) for count in (5, 2))
    after.set_state(before.get_state())
    assert after.max_concurrent == 2  # type: ignore[union-attr]
