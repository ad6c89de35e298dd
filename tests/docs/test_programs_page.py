"""docs/programs.md: the simulators of examples/simulators, each built and trained as the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.config.experiment import experiments_from_file
from shoal.envs.context import EnvContext
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/programs.md").read_text()
SIMULATORS = ROOT / "examples/simulators"


def built(language: str, tmp_path: Path) -> Path:
    """A copy of a language's folder, with its program built by the command of the page."""
    folder = tmp_path / language
    shutil.copytree(SIMULATORS, tmp_path, dirs_exist_ok=True)
    row = next(line for line in PAGE.splitlines() if f"`{language}/" in line)
    [command] = re.findall(r"`((?:cc|gcc) [^`]+)`", row)
    subprocess.run(command, shell=True, cwd=folder, check=True)
    return folder


def best_return(command: str, folder: Path, iterations: int) -> float:
    config = {"env": {"command": command, "timeout_s": 60}, "train_batch_size": 1000, "lr": 1e-3, "seed": 1}
    trainer = shoal.PPO(config, search_path=[folder])
    try:
        return max(trainer.train()["episode_reward_mean"] for _ in range(iterations))
    finally:
        trainer.stop()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_oscillator_in_c_comes_to_rest(tmp_path: Path) -> None:
    folder = built("c", tmp_path)
    assert best_return("./oscillator", folder, 16) > -6  # without control: -18


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gfortran") is None, reason="there is no Fortran compiler")
def test_the_rod_in_fortran_is_heated(tmp_path: Path) -> None:
    folder = built("fortran", tmp_path)
    assert best_return("./rod", folder, 16) > -9  # without control: about -28


@pytest.mark.skipif(shutil.which("octave-cli") is None, reason="GNU Octave is not installed")
def test_the_tank_in_octave_answers_at_once() -> None:
    """Without the line after it, which only its answer brings about."""
    env = env_maker({"command": "octave-cli --quiet tank.m", "timeout_s": 60}, UserCode.at(SIMULATORS / "octave"))
    tank = env.make(EnvContext())
    try:
        level, _ = tank.reset(seed=7)
        assert level == pytest.approx([2 * (7 * 0.618034 % 1)])
        obs, reward, terminated, truncated, _ = tank.step(np.array([0.5], np.float32))
        assert obs == pytest.approx(level + 0.1 * (0.5 - 0.5 * np.sqrt(level)))
        assert reward == pytest.approx(-abs(obs[0] - 1))
        assert (terminated, truncated) == (False, False)
        assert tank.reset(seed=8)[0] == pytest.approx([2 * (8 * 0.618034 % 1)])
    finally:
        tank.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("octave-cli") is None, reason="GNU Octave is not installed")
def test_the_tank_in_octave_is_filled(tmp_path: Path) -> None:
    shutil.copytree(SIMULATORS, tmp_path, dirs_exist_ok=True)
    assert best_return("octave-cli --quiet tank.m", tmp_path / "octave", 14) > -5  # at random: about -11


@pytest.mark.slow
def test_the_thermostat_trains_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SIMULATORS / "python")
    words = ["python3 thermostat.py", "--protocol", "lines", "--stop", "timesteps_total=2000"]
    result = CliRunner().invoke(main, ["train", *words, "--results-dir", str(tmp_path)], prog_name="shoal")
    assert result.exit_code == 0, result.output
    [folder] = tmp_path.glob("thermostat/PPO_thermostat_*")
    evaluated = CliRunner().invoke(main, ["evaluate", str(folder), "--episodes", "2"], prog_name="shoal")
    assert evaluated.exit_code == 0, evaluated.output
    assert "PPO thermostat" in evaluated.output
    words[-1] = "timesteps_total=4000"
    again = CliRunner().invoke(main, ["train", *words, "--results-dir", str(tmp_path)], prog_name="shoal")
    assert again.exit_code == 0, again.output
    assert len(list(tmp_path.glob("thermostat/PPO_thermostat_*"))) == 1  # the same command goes on


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_files_of_the_page_are_right(block: str, tmp_path: Path) -> None:
    (tmp_path / "page.yml").write_text(block)
    [experiment] = experiments_from_file(tmp_path / "page.yml")
    assert isinstance(experiment.config.env, dict)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["./nothing", "--protocol", "lines"], "there is no program './nothing'"),
        (["false", "--protocol", "lines"], "env false: the program ended with code 1"),
        (["--protocol", "lines"], "There is no environment to train on"),
        (["./thermostat.sh"], "add --protocol lines"),
    ],
)
def test_what_cannot_be_started_is_told_in_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thermostat.sh").write_text("#!/bin/sh\n")
    result = CliRunner().invoke(main, ["train", *words, "--results-dir", str(tmp_path / "r")], prog_name="shoal")
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
