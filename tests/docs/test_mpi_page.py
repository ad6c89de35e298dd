"""docs/mpi.md: its class and its experiment train, its keys exist, and its options are those that are used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.settings import AlgorithmConfig
from shoal.machine.mpi_launchers import LAUNCHERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mpi.md").read_text()
EXAMPLE = ROOT / "examples" / "simulators" / "mpi"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SHORT = ["--stop", "training_iteration=1", "--set", "train_batch_size=40", "--results-dir", "results"]


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def shoal(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        cwd=folder,
        env={**os.environ, **AS_ROOT},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the example's solver, built."""
    for tool in ("mpicc", "mpirun", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here")
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    subprocess.run(["make", "-B"], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@pytest.mark.slow
def test_the_class_of_the_page_trains(folder: Path) -> None:
    (folder / "my_env.py").write_text(block("python"))
    done = shoal(folder, "train", "my_env.py:Rod", "--set", "env_ranks=2", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_example_is_checked_and_trains(folder: Path) -> None:
    checked = shoal(folder, "check", "rod_env.py:Rod", "--set", "env_ranks=2", "--episodes", "1")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = shoal(folder, "train", "rod_env.py:Rod", "--set", "env_ranks=2", "--num-workers", "2", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_experiment_of_the_page_is_one(tmp_path: Path) -> None:
    (tmp_path / "rod.yml").write_text(block("yaml"))
    (experiment,) = experiments_from_file(tmp_path / "rod.yml")
    assert experiment.config.env_ranks == 2
    assert experiment.config.isolates_envs


@pytest.mark.slow
@pytest.mark.skipif(None in map(shutil.which, ("mpicc", "mpirun", "make")), reason="there is no MPI here")
def test_the_experiment_of_the_page_trains_in_the_project_of_the_page(tmp_path: Path) -> None:
    (line,) = re.findall(r"`(shoal init [^`]*)`", PAGE)
    assert shoal(tmp_path, *line.split()[1:]).returncode == 0
    project = tmp_path / "my-project"
    subprocess.run(["make"], cwd=project, check=True, capture_output=True)
    (project / "rod.yml").write_text(block("yaml"))
    done = shoal(project, "train", "-f", "rod.yml", *SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Finished" in done.stdout


def test_the_keys_and_the_options_are_there() -> None:
    assert set(re.findall(r"^\| `((?:env|max)_\w+)` \|", PAGE, re.MULTILINE)) <= set(AlgorithmConfig.model_fields)
    for launcher in LAUNCHERS:
        assert " ".join(launcher.options("HOST", 2)) in PAGE, launcher.name


def test_without_ranks_the_class_says_what_to_set(folder: Path) -> None:
    done = shoal(folder, "train", "rod_env.py:Rod", *SHORT)
    assert done.returncode == 2
    assert "config.env_ranks: the environment starts MPI ranks; set how many" in done.stderr
    assert "Traceback" not in done.stderr
