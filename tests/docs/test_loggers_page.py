"""The experiment of docs/loggers.md is one, and its logger is told what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.logger_names import ENTRY_POINTS, LOGGERS
from shoal.runs.loggers import RunInfo

PAGE = (Path(__file__).parents[2] / "docs" / "loggers.md").read_text()


def block(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


def test_the_experiment_names_loggers(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text(block("yaml"))
    (experiment,) = experiments_from_file(tmp_path / "x.yml")
    assert experiment.loggers == ("wandb", "mlflow")
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(LOGGERS)
    assert block("toml").startswith(f'[project.entry-points."{ENTRY_POINTS}"]')


def test_the_logger_of_ones_own_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, type] = {"__name__": "page"}
    exec(compile(block("python"), "loggers.md", "exec", dont_inherit=True), space)
    logger = space["PrintLogger"]()
    logger.start(RunInfo("0", "n", "exp", tmp_path, "PPO", "CartPole-v1", None, False), {"lr": 0.1})
    logger.log({"timesteps_total": 5})
    logger.finish("finished")
    assert capsys.readouterr().out.splitlines() == ["start exp 0.1", "5 None", "end finished"]
