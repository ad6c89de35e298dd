"""docs/lines.md: its commands, its file, its lines of C and its messages, and each simulator of examples/simulators."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.envs.context import EnvContext
from shoal.envs.importing import UserCode
from shoal.envs.making import env_maker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/lines.md").read_text()
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


SHORT = "--stop training_iteration=1 --set train_batch_size=200 --results-dir results"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_commands_of_the_page_end_well(tmp_path: Path) -> None:
    shutil.copytree(SIMULATORS / "c", tmp_path, dirs_exist_ok=True)
    lines = re.findall(r"^ {4}(\S.*)$", PAGE.partition("```yaml")[0], re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["cc", "shoal", "shoal", "shoal"]
    for line in lines:
        run_line(f"{line} {SHORT}" if line.startswith("shoal train") else line, tmp_path)


def run_line(line: str, folder: Path) -> str:
    """What a line of the page prints, typed into a shell that finds this shoal."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        line, shell=True, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gfortran") is None, reason="there is no Fortran compiler")
def test_the_file_of_the_page_trains(tmp_path: Path) -> None:
    folder = built("fortran", tmp_path)
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (folder / "rod.yml").write_text(block)
    assert "Finished" in run_line(f"shoal train -f rod.yml {SHORT}", folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "line"),
    re.findall(r"^\| \w+ \|.*\| `(\w+)/.* \| `(shoal train [^`]+)`", PAGE, re.MULTILINE),
)
def test_the_commands_of_the_table_end_well(language: str, line: str, tmp_path: Path) -> None:
    program = line.split('"')[1].split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    shutil.copytree(SIMULATORS / language, tmp_path, dirs_exist_ok=True)
    assert "Finished" in run_line(f"{line} {SHORT}", tmp_path)


LOOP = """
#include "shoal.h"

static void advance(double *state, const double *push) { state[0] += push[0]; }

int main(void) {
    double low[1] = {-1e9}, high[1] = {1e9}, push_low[1] = {-1}, push_high[1] = {1};
    double state[1] = {0}, push[1], reward = 1;
    int terminated = 0, truncated = 0;
    if (!shoal_connect(1, low, high, 1, 0, push_low, push_high)) return 1;
@loop@
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_lines_of_c_are_a_simulator(tmp_path: Path) -> None:
    (block,) = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "sum.c").write_text(LOOP.replace("@loop@", block))
    words = ["cc", "-Wall", "-Werror", "-Wno-unused-function", f"-I{SIMULATORS / 'c'}", "-o", "sum", "sum.c", "-lm"]
    subprocess.run(words, cwd=tmp_path, check=True)
    env = env_maker({"command": "./sum", "timeout_s": 60}, UserCode.at(tmp_path)).make(EnvContext())
    try:
        assert env.reset(seed=1)[0] == [0]
        for total in (0.5, 1.0):
            obs, reward, *ends, _ = env.step(np.array([0.5], np.float32))
            assert (obs, reward, ends) == ([total], 1, [False, False])
        assert env.reset()[0] == [1]
    finally:
        env.close()


ACTOR = """
import json, sys

spoken = json.load(open("rows.json"))
for who, message in spoken:
    if who == "program":
        print(message, flush=True)
    else:
        with open("heard.jsonl", "a") as heard:
            heard.write(sys.stdin.readline())
"""


def test_the_messages_of_the_page_are_those_that_are_exchanged(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (program|shoal) \| `(\{.*?\})` \|", PAGE, re.MULTILINE)
    (box,) = re.findall(r'`(\{"type": "Box".*?\})`', PAGE)
    assert len(rows) == 7
    spaces = {"observation": json.loads(box), "action": {"type": "Box", "low": [-1], "high": [1]}}
    rows[0] = ("program", json.dumps({"shoal": 1, **spaces}))
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "actor.py").write_text(ACTOR)
    command = [sys.executable, "actor.py"]
    env = env_maker({"command": command, "timeout_s": 60}, UserCode.at(tmp_path)).make(EnvContext())
    try:
        assert env.reset(seed=7)[0] == pytest.approx([0.1, 0.2])
        obs, *others = env.step(np.array([0.5], np.float32))
        assert obs == pytest.approx([0.3, 0.1])
        assert others == [1.0, False, False, {}]
    finally:
        env.close()
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]
    assert heard == [json.loads(message) for who, message in rows if who == "shoal"]


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
