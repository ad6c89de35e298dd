"""What docs/evaluation.md shows works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.config.experiment import ALGORITHMS, experiments_from_file
from shoal.config.result_names import result_names
from shoal.config.settings import key_paths

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.slow
def test_the_file_and_the_program(tmp_path: Path) -> None:
    file = tmp_path / "stones.yml"
    file.write_text(block("yaml"))
    (experiment,) = experiments_from_file(file)
    short = {"stop": {"training_iteration": 10}, "results_dir": str(tmp_path)}
    results = list(shoal.run(experiment.model_copy(update=short)))
    assert ["evaluation" in result for result in results] == [False, False, False, False, True] * 2
    (run,) = (tmp_path / "stones").iterdir()
    exec(block("python"), {"RUN": run, "obs": np.zeros(4, np.float32)})


def test_every_flag_is_there() -> None:
    known = CliRunner().invoke(main, ["evaluate", "--help"]).output
    flags = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    assert flags
    assert all(flag in known for flag in flags)


def test_every_key_and_result_is_there() -> None:
    keys = {path.rpartition(".")[2] for kind in ALGORITHMS.values() for path in key_paths(kind)}
    keys |= {name.rpartition("/")[2] for name in result_names()} | {"checkpoint_score_attr", "keep_checkpoints_num"}
    named = re.findall(r"`(?:learner/)?([a-z]+(?:_[a-z]+)+)`", PAGE)
    columns = {"episode_reward", "episode_len"}
    assert len(named) > 20
    assert not set(named) - keys - columns
