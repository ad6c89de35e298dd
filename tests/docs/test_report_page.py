"""What docs/report.md types is so, on runs of the names that it uses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_runs import fake_run

from shoal.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
COMMANDS = re.findall(r"^ {4}(shoal .*?)(?: +#.*)?$", PAGE, re.MULTILINE)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "shoal_results"
    for seed in range(8):
        fake_run(root, "slow", seed, lambda at, seed=seed: at + seed / 8, config={"lr": 1e-4})
        fake_run(root, "fast", seed, lambda at, seed=seed: 3.0 * at + seed / 8)
    fake_run(root, "CartPole-v1")
    (tmp_path / "results.csv").write_text("case,wind,episode_reward,error\n1,2.5,10,\n")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_end_well(command: str, work: Path) -> None:
    if "-o curves" in command:
        pytest.importorskip("matplotlib")
    done = CliRunner().invoke(main, shlex.split(command)[1:], prog_name="shoal")
    assert done.exit_code == 0, done.output
    file = re.search(r"-o (\S+)", command)
    assert file is None or (work / file[1]).exists()
    if "--until-sure" in command:
        assert done.output.splitlines()[-1].startswith("Decided: fast is better than slow (8 of 8 pairs of seeds")


def test_all_commands_are_there() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"plot", "report", "compare", "watch"}


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kept, drawn = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    checked = (
        f"{kept}\nassert again == results and results._repr_html_()\n{drawn}\nassert result['timesteps_total'] >= 4000"
    )
    done = subprocess.run(
        [sys.executable, "-c", checked], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
