"""`shoal check`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main

SICK = str(Path(__file__).parents[1] / "unit/envs/sick_envs.py")


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], prog_name="shoal")


def test_a_healthy_environment_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(f"one: {{env: '{SICK}:Healthy', run: PPO, config: {{horizon: 20}}}}\n")
    result = check(str(tmp_path / "a.yml"), "--episodes", "2")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == f"Checking {SICK}:Healthy"
    assert "2 episodes did not end within 20 steps" in result.output.replace(" of 2 did", " did")
    assert lines[-1] == "It can be trained; 1 warning to look at."


def test_a_problem_ends_with_1_and_programs_can_read_it() -> None:
    result = check(f"{SICK}:Raising", "--episodes", "1", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.output)
    [problem] = [row for row in rows if row["verdict"] == "problem"]
    assert problem["check"] == "random actions"
    assert "the solver diverged" in problem["text"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "There is no environment to check"),
        (["CartPole"], "which version?"),
        ([SICK], "shoal check"),
        (["CartPole-v1", "--set", "config.lrr=1"], "did you mean config.lr?"),
        (["CartPole-v1", "--episodes", "0"], "--episodes"),
        (["nothing.yml"], "nothing.yml"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    result = check(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
