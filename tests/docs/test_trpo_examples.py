"""examples/trpo/README.md: its command lines train, on fewer steps, and what it says of the settings is so."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.experiment import experiments_from_file
from shoal.envs.importing import UserCode

TRPO = Path(__file__).parents[2] / "examples" / "trpo"
README = (TRPO / "README.md").read_text()
TABLE = [row.strip("|").split("|")[1] for row in README.splitlines() if row.startswith(("| `./run", "| the same"))]
LINES = [code for cell in TABLE for code in re.findall(r"`([^`]+)`", cell)] + re.findall(
    r"^ {4}(shoal .*)$", README, re.MULTILINE
)
FEWER = "--set config.train_batch_size=12 --set config.num_sgd_iter=1 --stop training_iteration=1"
GNUGO = shutil.which("gnugo", path=f"{os.environ['PATH']}:/usr/games")


def runs(starts_ray: bool) -> list[Any]:
    found = [line for line in LINES if line.startswith("shoal train") and ("--num-workers" in line) == starts_ray]
    return [pytest.param(line, id=line) for line in found]


def shrunk(line: str) -> list[str]:
    """The words of a line that trains for twelve steps, against random play where there is no GNU Go."""
    line = re.sub(r"--num-workers \d+", "--num-workers 2", line)
    line = re.sub(r"evaluation_interval=\d+", "evaluation_interval=1 --set config.evaluation_duration=1", line)
    line = line.replace("num_envs_per_worker=40", "num_envs_per_worker=3")
    short = "" if "pong" in line else " --set config.env_config.max_moves=8"
    if GNUGO is None and "go.yml" in line and "env_config.opponent" not in line:
        short += " --set config.env_config.opponent=random"
    return shlex.split(f"{line} {FEWER}{short}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(TRPO, tmp_path / "trpo", ignore=shutil.ignore_patterns("__pycache__")))
    (copy / "hosts.txt").write_text("n1\nn2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(copy)
    return copy


def trained(line: str) -> None:
    if "pong" in line:
        pytest.importorskip("ale_py")
    done = CliRunner().invoke(main, [*shrunk(line)[1:], "--quiet"], prog_name="shoal")
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    assert "Finished: training_iteration 1 >= 1" in done.output


def test_there_are_lines_of_both_kinds() -> None:
    assert len(runs(False)) == 5
    assert len(runs(True)) == 2
    assert len([line for line in LINES if line.startswith("shoal launch")]) == 2


@pytest.mark.repeats(2)
@pytest.mark.parametrize("line", runs(starts_ray=False))
def test_lines_without_workers_train(line: str, folder: Path) -> None:
    trained(line)
    (result,) = folder.parent.glob("shoal_results/*/*/result.json")
    last = json.loads(result.read_text().splitlines()[-1])
    assert last["env_failures_total"] == 0
    if "go.yml" in line:
        assert last["custom_metrics"]["moves_mean"] == 8
        assert 0 <= last["custom_metrics"]["win_mean"] <= 1
    assert ("evaluation" in last) == ("evaluation_interval" in line)


@pytest.mark.slow
@pytest.mark.parametrize("line", runs(starts_ray=True))
def test_lines_with_workers_train(line: str, folder: Path) -> None:
    trained(line)


@pytest.mark.slow
def test_the_line_of_one_machine_is_launched_as_it_is(folder: Path) -> None:
    (line,) = [line for line in LINES if line.startswith("shoal launch -- ")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = shrunk(line.replace("shoal launch --", "shoal launch --num-cpus 3 --"))
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Finished: training_iteration 1 >= 1" in done.stdout


def test_the_line_of_many_hosts_launches_what_trains(folder: Path) -> None:
    (line,) = [line for line in LINES if "--hostfile" in line]
    words = shlex.split(line)
    at = words.index("--")
    context = main.make_context("shoal", ["launch"])
    command = main.get_command(context, "launch")
    assert command is not None
    assert command.make_context("launch", words[2:], parent=context).params["hostfile"]
    done = CliRunner().invoke(main, [*words[at + 2 :], "--dry-run"], prog_name="shoal")
    assert done.exit_code == 0, done.output


def test_the_files_have_the_settings_of_the_tutorial() -> None:
    (go,) = experiments_from_file(TRPO / "go.yml")
    assert (go.run, go.config.train_batch_size, go.config.num_envs_per_worker) == ("TRPO", 2000, 1)
    assert list(go.config.model.fcnet_hiddens) == [244, 81]
    assert go.stop == {"training_iteration": 1000}
    (pong,) = experiments_from_file(TRPO / "pong.yml")
    assert (pong.run, pong.config.env_config, pong.stop) == ("TRPO", {"obs_type": "ram"}, {"training_iteration": 500})


def test_the_table_has_every_setting_of_the_environment() -> None:
    settings = UserCode.at(TRPO).load_module("go_env").SETTINGS
    rows = [
        row.strip("|").split("|")
        for row in README.partition("| key of `env_config` |")[2].splitlines()[2:]
        if "|" in row
    ]
    named = {key: row[-1] for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    assert list(named) == list(settings)
    for key, default in settings.items():
        shown = str(int(default) if isinstance(default, float) and default.is_integer() else default)
        assert ("null" if default is None else shown) in named[key], key
