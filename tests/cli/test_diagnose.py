"""`shoal diagnose`: what it prints, and how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main

ENVS = Path(__file__).parents[1] / "unit/runs/unlearnable_envs.py"
Trained = tuple[object, "subprocess.CompletedProcess[str]", Path]


def diagnose(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["diagnose", *arguments], prog_name="shoal")


@pytest.fixture
def run(trained: Trained, tmp_path: Path) -> Path:
    """A finished run of CartPole that a test may change."""
    return Path(shutil.copytree(trained[2], tmp_path / trained[2].name))


def put_results(run: Path, count: int = 20, **learner: float) -> None:
    """Make the run longer, with these numbers of the learner."""
    first = json.loads((run / "result.json").read_text().splitlines()[0])
    first["learner"] |= {"vf_explained_var": 0.5, **learner}
    (run / "result.json").write_text((json.dumps(first) + "\n") * count)


def test_nothing_suspicious(run: Path) -> None:
    result = diagnose(str(run))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("PPO CartPole-v1  ")
    assert lines[1].startswith("3 iterations, 768 steps")
    assert lines[2:] == ["Nothing suspicious."]


def test_by_a_checkpoint_and_by_a_name(run: Path) -> None:
    (checkpoint,) = run.glob("checkpoint_*")
    assert diagnose(str(checkpoint), "--no-play").exit_code == 0
    shutil.copytree(run, run.parent / "results/CartPole-v1/a-run")
    result = diagnose("CartPole-v1", "--no-play", "--results-dir", str(run.parent / "results"), "--json")
    assert (result.exit_code, json.loads(result.output)) == (0, [])


def test_a_problem_ends_with_1_and_programs_can_read_it(run: Path) -> None:
    put_results(run, refused_minibatches=9.0, clip_fraction=0.8)
    result = diagnose(str(run), "--no-play")
    assert result.exit_code == 1
    assert result.output.splitlines()[2].startswith("refused updates   problem ")
    assert "-> smaller steps: --set config.lr=" in result.output
    assert result.output.splitlines()[-1] == "1 problem: begin with the first."
    rows = json.loads(diagnose(str(run), "--no-play", "--json").output)
    assert [row["check"] for row in rows] == ["refused updates", "clip binds"]
    assert list(rows[0]) == ["check", "verdict", "text", "remedy"]


def test_warnings_alone_end_with_0(run: Path) -> None:
    put_results(run, clip_fraction=0.8)
    result = diagnose(str(run), "--no-play")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "1 warning: begin with the first, and change one thing at a time."


def test_a_run_without_a_checkpoint_is_read(run: Path) -> None:
    for checkpoint in run.glob("checkpoint_*"):
        shutil.rmtree(checkpoint)
    result = diagnose(str(run))
    assert result.exit_code == 0, result.output
    assert "neither weights nor play" in result.output


def test_an_environment_that_is_gone_is_told(tmp_path: Path, small: list[str]) -> None:
    env = Path(shutil.copy(ENVS, tmp_path / "my_env.py"))
    where = ["--results-dir", str(tmp_path / "results")]
    train = ["train", f"{env}:Healthy", "--stop", "training_iteration=1", "--name", "mine", *small, *where]
    assert CliRunner().invoke(main, train).exit_code == 0
    env.unlink()
    result = diagnose("mine", *where)
    assert "the policy could not be played: " in result.output
    assert "my_env.py" in result.output
    assert result.output.splitlines()[-1] == "Nothing suspicious."
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["nothing-here"], "there is no run at"),
        (["nothing-here", "--episodes", "0"], "--episodes"),
        (["nothing-here", "--no-plays"], "There is no option --no-plays"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    result = diagnose(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_run_without_results_is_refused(run: Path) -> None:
    (run / "result.json").unlink()
    result = diagnose(str(run))
    assert result.exit_code == 2
    assert "result.json cannot be used: it is missing, though the run has made iterations" in result.output
