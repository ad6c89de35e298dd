"""The program of docs/agents.md runs, its experiments are such, and the examples of several agents learn."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.multiagent import MultiAgentConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "agents.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_the_experiments_are_such_and_the_table_has_every_key(tmp_path: Path) -> None:
    found = []
    for number, text in enumerate(blocks("yaml")):
        file = tmp_path / f"{number}.yml"
        file.write_text(text)
        found += experiments_from_file(file)
    assert found[0].config.multiagent.policy_of("adversary_1") == "chaser"
    assert found[0].config.for_policy("chaser").lr == 5e-4
    assert found[1].config.multiagent.trained == ("main",)
    keys = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert keys == set(MultiAgentConfig.model_fields) - {"num_agents"}


def run(command: list[str], folder: Path) -> str:
    examples = shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, cwd=examples, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_tic_tac_toe_is_never_lost_against_random_moves(tmp_path: Path) -> None:
    printed = run([sys.executable, "tic_tac_toe.py"], tmp_path)
    assert printed.splitlines()[-1] == "Not one of 1000 games was lost."


@pytest.mark.slow
def test_three_agents_learn_to_cover_three_landmarks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "train", "-f", "spread.yml", "--stop", "timesteps_total=72000"]
    run(command, tmp_path)
    (results,) = (tmp_path / "shoal_results" / "spread").glob("*/result.json")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert lines[-1]["episode_reward_mean"] > lines[0]["episode_reward_mean"] + 10
    assert set(lines[-1]["policy_reward_mean"]) == {"default_policy"}
