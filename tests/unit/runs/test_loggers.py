"""Loggers: what they are told, and that nothing they do reaches the training."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.config.experiment import Experiment, experiment_from
from shoal.errors import ConfigError
from shoal.runs import loggers
from shoal.runs.loggers import ID_FILE, Loggers, RunInfo, check_loggers, run_info
from shoal.runs.run import Run

told: list[tuple[str, Any]] = []


class Good:
    """Keeps what it is told."""

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        told.append(("start", (run, dict(config))))

    def log(self, result: Mapping[str, float]) -> None:
        told.append(("log", dict(result)))

    def finish(self, state: str) -> None:
        told.append(("finish", state))


class Bad(Good):
    """Fails at whatever it is told."""

    def log(self, result: Mapping[str, float]) -> None:
        raise SystemExit("no network\nand a traceback")

    finish = log  # type: ignore[assignment]


class Unable(Good):
    """Cannot begin."""

    def start(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        raise ValueError("no key")


class Stuck(Good):
    """Never answers."""

    def log(self, result: Mapping[str, float]) -> None:
        threading.Event().wait()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that adds the loggers above."""
    told.clear()
    sys.modules["installed_loggers"] = sys.modules[__name__]
    points = {name: importlib.metadata.EntryPoint(name, f"installed_loggers:{name.capitalize()}", "shoal.loggers")
              for name in ("good", "bad", "unable", "stuck", "missing")}  # fmt: skip
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: list(points.values()) if group == "shoal.loggers" else real(group=group),
    )


def experiment(folder: Path, *names: str, **more: Any) -> Experiment:
    small = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "num_envs_per_worker": 2, "seed": 1}
    tree = {"name": "x", "env": "CartPole-v1", "stop": {"training_iteration": 2}, "results_dir": str(folder)}
    return experiment_from({**tree, "loggers": list(names), "report": False, "config": small, **more})


def test_a_run_tells_its_loggers_and_continues_as_the_same(tmp_path: Path) -> None:
    run = Run.open(experiment(tmp_path, "good"))
    results = list(run.results())
    kinds = [kind for kind, _ in told]
    assert kinds == ["start", "log", "log", "finish"]
    info, config = told[0][1]
    assert (info.experiment, info.name, info.algorithm, info.env) == ("x", run.folder.name, "PPO", "CartPole-v1")
    assert (info.group, info.is_resumed) == (None, False)
    assert config["train_batch_size"] == 64
    assert config["model/fcnet_activation"] == "tanh"
    assert told[2][1]["timesteps_total"] == results[-1]["timesteps_total"]
    assert told[2][1]["learner/kl"] == results[-1]["learner"]["kl"]
    assert told[3][1] == "finished"
    told.clear()
    list(Run.resume(run.folder, {"stop": {"training_iteration": 3}}).results())
    assert [kind for kind, _ in told] == ["start", "log", "finish"]
    again = told[0][1][0]
    assert (again.id, again.is_resumed) == (info.id, True)


def test_loggers_that_fail_are_told_of_once_and_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "FINISH_S", 0.3)
    plain, logged = Run.open(experiment(tmp_path / "a")), Run.open(experiment(tmp_path / "b", "unable", "bad", "stuck"))
    with caplog.at_level(logging.WARNING, "shoal.loggers"):
        list(plain.results())
        assert caplog.messages == []
        list(logged.results())
    assert caplog.messages == [
        "The logger unable fails (no key); training continues.",
        "The logger bad fails (no network); training continues.",
        "The loggers have not ended within 0 s, and are left; the run is complete.",
    ]
    assert logged.outcome is not None
    assert logged.outcome.kind == "stopped"
    arrays = [run.folder / "checkpoint_000002" / "arrays.safetensors" for run in (plain, logged)]
    assert arrays[0].read_bytes() == arrays[1].read_bytes()
    assert not (plain.folder / ID_FILE).exists()


def test_more_results_than_a_logger_takes_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "MOST_WAITING", 3)
    monkeypatch.setattr(loggers, "FINISH_S", 0.05)
    stuck = Loggers(experiment(tmp_path, "stuck"), tmp_path, False)
    for number in range(20):
        stuck.log({"training_iteration": number})
    stuck.finish("finished")
    assert caplog.messages[0] == "The loggers are 3 results behind; more are left out."
    assert len(caplog.messages) == 2


def test_trials_of_a_sweep_are_a_group(tmp_path: Path) -> None:
    trial = tmp_path / "tuned_1" / "trials" / "00003"
    trial.mkdir(parents=True)
    (tmp_path / "tuned_1" / "sweep.json").write_text("{}")
    info = run_info(experiment(tmp_path), trial, False)
    assert (info.group, info.name) == ("tuned_1", "tuned_1_00003")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["wandbb"], "loggers: there is no logger 'wandbb'; did you mean wandb?"),
        (["neptune_service"], "there are bad, good, missing, mlflow, stuck, trackio, unable, wandb"),
        (["tensorboard"], "TensorBoard's files are always written"),
        (["good", "good"], "loggers: names good twice; name it once"),
        ("wandb", "loggers: must be a list"),
        ([3], "loggers"),
    ],
)
def test_what_is_no_logger_is_refused_with_the_near_ones(tmp_path: Path, names: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment_from({"env": "CartPole-v1", "loggers": names})
    assert sentence in str(error.value)


def test_what_is_not_installed_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"loggers: wandb is not installed; type pip install 'shoal-rl\[wandb\]'"):
        Run.open(experiment(tmp_path, "wandb"))
    with pytest.raises(ConfigError, match=r"loggers: missing \(installed_loggers:Missing\) cannot be loaded"):
        check_loggers(["missing"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left_by_a_logger").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(loggers.LOGGERS, "left_by_a_logger", "module:Class")
    with pytest.raises(ConfigError, match="left_by_a_logger is not installed"):
        check_loggers(["left_by_a_logger"])


SCRIPT = """
import json, sys, time
from pathlib import Path
from shoal.runs.loggers import {kind} as Kind, RunInfo
def info(is_resumed):
    return RunInfo("0123456789abcdef", "run_1", "exp", Path.cwd(), "PPO", "CartPole-v1", "sweep_1", is_resumed)
def result(at):
    return {{"training_iteration": at, "timesteps_total": 100 * at, "learner/kl": 0.5, "a (b)": 1.0}}
for first, is_resumed in ((1, False), (3, True)):
    logger = Kind()
    logger.start(info(is_resumed), {{"lr": 0.1, "model/fcnet_hiddens": [64, 64], "none": None}})
    for at in range(first, first + 2):
        logger.log(result(at))
    logger.finish("finished" if is_resumed else "interrupted")
    ended = int(time.time())
    while int(time.time()) == ended:  # wandb names what it keeps by the second
        pass
"""

MLFLOW = """
from mlflow import MlflowClient
client = MlflowClient()
place = client.get_experiment_by_name("exp").experiment_id
(run,) = client.search_runs([place])
steps = [one.step for one in client.get_metric_history(run.info.run_id, "learner/kl")]
assert steps == [100, 200, 300, 400], steps
assert run.info.status == "FINISHED" and run.info.run_name == "run_1", run.info
assert run.data.params["lr"] == "0.1" and run.data.tags["shoal_sweep"] == "sweep_1", run.data
"""

WANDB = """
folders = sorted(Path("wandb").glob("offline-run-*-0123456789abcdef"))
assert len(folders) == 2, folders
assert all((folder / "run-0123456789abcdef.wandb").stat().st_size > 100 for folder in folders)
"""

TRACKIO = """
import trackio
(run,) = trackio.Api().runs("exp")
assert run.name == "run_1", run.name
import sqlite3, glob
(base,) = [one for one in glob.glob("trackio/*.db") if "exp" in one]
steps = sorted(row[0] for row in sqlite3.connect(base).execute("select step from metrics"))
assert steps == [1, 2, 3, 4], steps
"""


@pytest.mark.slow
@pytest.mark.parametrize(("package", "check"), [("mlflow", MLFLOW), ("wandb", WANDB), ("trackio", TRACKIO)])
def test_the_real_library_has_one_run_that_was_continued(tmp_path: Path, package: str, check: str) -> None:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed: pip install 'shoal-rl[{package}]'")
    source = SCRIPT.format(kind=f"{package.capitalize()}Logger") + check
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"file:{tmp_path / 'ml'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
