"""What docs/watching.md types is so, on short runs of the names that it uses."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "watching.md").read_text()
COMMANDS = re.findall(r"^ {4}(shoal .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
SMALL = {"num_envs_per_worker": 2, "train_batch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}


@pytest.mark.slow
def test_the_commands_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("av", "matplotlib", "pyarrow"):
        pytest.importorskip(package)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.chdir(tmp_path)
    for env in ("CartPole-v1", "FrozenLake-v1"):
        list(shoal.run({"env": env, "name": env, "stop": {"training_iteration": 1}, "report": False, "config": SMALL}))
    assert len(COMMANDS) >= 10
    for command in COMMANDS:
        done = CliRunner().invoke(main, shlex.split(command)[1:], prog_name="shoal")
        assert done.exit_code == 0, (command, done.output)
        for file in re.findall(r"(?:-o|--video|--gif|--trajectories) (\S+\.\w+)", command):
            assert (tmp_path / file).stat().st_size > 0
    (run,) = (tmp_path / "shoal_results" / "CartPole-v1").iterdir()
    assert (run / "replay.mp4").exists()
    assert "Trajectories: evaluation_" in (run / "report.html").read_text()


def test_every_flag_is_there() -> None:
    commands = ("play", "evaluate", "plot", "report")
    known = "".join(CliRunner().invoke(main, [name, "--help"]).output for name in commands)
    flags = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    assert len(flags) > 10
    assert all(flag in known for flag in flags)
