"""`shoal profile`: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from desks import Desk

from shoal.cli.main import main
from shoal.runs import profiling
from shoal.runs.measuring import steps_per_episode

SICK = str(Path(__file__).parents[1] / "unit/envs/sick_envs.py")
SHORT = ["--seconds", "0.5", "--max-workers", "4"]


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments], prog_name="shoal")


def test_a_forecast_for_people() -> None:
    result = profile("CartPole-v1", *SHORT, "--cores-per-node", "2", "--steps", "2e6", "--set", "train_batch_size=512")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "PPO CartPole-v1: 512 steps an iteration, 8 environments for each worker"
    (head,) = (number for number, line in enumerate(lines) if line.startswith(" workers  nodes"))
    assert lines[head].endswith("node-hours to 2,000,000 steps")
    assert [line.split()[:2] for line in lines[head + 1 : head + 5]] == [["0", "1"], ["1", "1"], ["2", "1"], ["4", "2"]]
    assert "the limit" in lines[head + 5]
    assert lines[head + 6].startswith("recommended  --set num_workers=")
    assert "Measuring CartPole-v1 for about 0.5 s" in result.stderr


def test_the_length_of_an_episode() -> None:
    assert steps_per_episode(1000, [50] * 16) == 50  # and 25 of each of 8 environments have not ended
    assert steps_per_episode(1000, [10, 40]) == 500
    assert steps_per_episode(1000, []) == 0


SLOW = """
import time
from gymnasium.envs.classic_control import CartPoleEnv

class Slow(CartPoleEnv):
    steps = 0

    def step(self, action):
        Slow.steps += 1
        time.sleep(1000 if Slow.steps > {quick} else 0)
        return super().step(action)
"""


@pytest.mark.parametrize("quick", [0, 20])
def test_the_deadline_that_is_told_is_the_one_that_was_typed(
    quick: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "START_S", 2.0)
    file = tmp_path / "slow.py"
    file.write_text(SLOW.format(quick=quick))
    result = profile(f"{file}:Slow", *SHORT, "--timeout", "1")
    assert result.exit_code == 2
    assert "step() of the environment did not answer within 1 s; try shoal check, or give it longer" in result.stderr


def test_a_deadline_that_is_configured_is_that_of_the_call(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(SLOW.format(quick=20))
    result = profile(f"{file}:Slow", *SHORT, "--set", "env_step_timeout_s=1")
    assert result.exit_code == 2
    assert "step() of the environment did not answer within 1 s" in result.stderr
    assert "(env_step_timeout_s)" in result.stderr


@pytest.mark.slow
def test_a_forecast_for_programs_of_a_file(tmp_path: Path) -> None:
    text = f"one: {{env: '{SICK}:Healthy', run: DQN, config: {{wrappers: [{{DiscretizeAction: {{bins: 3}}}}]}}}}\n"
    (tmp_path / "a.yml").write_text(text)
    result = profile(str(tmp_path / "a.yml"), *SHORT, "--json")
    assert result.exit_code == 0, result.output
    (tree,) = json.loads(result.stdout)
    assert tree["name"] == "one"
    assert [row["workers"] for row in tree["scaling"]] == [0, 1, 2, 4]
    for row in tree["scaling"]:
        assert 0 < row["steps_per_s"]["low"] <= row["steps_per_s"]["middle"] <= row["steps_per_s"]["high"]
    assert tree["now"]["parts"].keys() == {"environment", "policy", "messages", "learner"}
    assert tree["recommended"]["settings"]["num_workers"] in (0, 1, 2)
    assert tree["costs"]["step_s"]["count"] > 1


@pytest.mark.slow
def test_predicted_beside_real(trained: tuple[Desk, subprocess.CompletedProcess[str], Path]) -> None:
    desk, _, run = trained
    done = desk.shoal("profile", str(run), "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "PPO CartPole-v1: 0 workers, 4 environments for each, 3 iterations"
    assert [line.split()[0] for line in lines[2:8]] == [
        "steps/s",
        "iteration",
        "environment",
        "policy",
        "messages",
        "learner",
    ]
    assert lines[2].rstrip().endswith("%")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "There is nothing to profile"),
        (["CartPole"], "which version?"),
        ([SICK], "shoal profile"),
        (["CartPole-v1", "--set", "config.lrr=1"], "did you mean config.lr?"),
        (["CartPole-v1", "--seconds", "0"], "--seconds"),
        (["CartPole-v1", "--max-workers", "0"], "--max-workers"),
        (["CartPole-v1", "--num-workers", "2"], "--set config.num_workers=2"),
        (["nothing.yml"], "nothing.yml"),
        ([f"{SICK}:Segfault", *SHORT], "it ended the process that measures it (SIGSEGV)"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    result = profile(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
