"""`shoal init`: every kind of project is made, built and trained where its tools are there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.init import KINDS, TEMPLATES
from shoal.cli.main import main
from shoal.config.experiment import experiments_from_file
from shoal.envs.context import EnvContext

EXAMPLES = Path(__file__).parents[2] / "examples/simulators"
TOOLS = {
    "gym": (),
    "lines": ("cc", "make"),
    "case": ("cc", "make"),
    "fmu": ("cc", "make"),
    "mpi": ("mpicc", "mpirun", "make"),
}


def init(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["init", *arguments], prog_name="shoal")


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a kind that can be trained here, built."""
    kind = request.param
    missing = [tool for tool in TOOLS[kind] if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here")
    if kind == "fmu" and importlib.util.find_spec("fmpy") is None:
        pytest.skip("fmpy is not installed")
    if kind == "case" and not hasattr(EnvContext, "scratch_dir"):
        pytest.skip("environments have no scratch_dir")
    if kind == "mpi" and os.getuid() == 0:  # which Open MPI refuses otherwise
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
        monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    folder = tmp_path / f"my-{kind}"
    result = init(str(folder), "--kind", kind)
    assert result.exit_code == 0, result.output
    if KINDS[kind].build:
        subprocess.run(["make"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.repeats(2)
@pytest.mark.parametrize("project", list(KINDS), indirect=True)
def test_a_project_trains_at_once(project: Path, tmp_path: Path) -> None:
    words = ["train", "experiment.yml", "--stop", "training_iteration=1", "--results-dir", str(tmp_path / "results")]
    small = ["--set", "config.train_batch_size=64", "--set", "config.num_envs_per_worker=2"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words, *small], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "results" / project.name).glob("*/checkpoint_000001"))


@pytest.mark.repeats(0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("project", list(KINDS), indirect=True)
def test_the_tests_of_a_project_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_file_of_a_project_is_whole(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "my project 2"
    result = init(str(folder), "--kind", kind)
    assert result.exit_code == 0, result.output
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", "experiment.yml", "job.yml", "test_my_project_2.py"} < names
    for name in names:
        text = (folder / name).read_text()
        assert "@project" not in text
        assert name in (folder / "README.md").read_text() or name.startswith(("README", "case/"))
    for name, _ in KINDS[kind].files:
        assert (folder / name).exists()
    for path in folder.glob("*.py"):
        compile(path.read_text(), path.name, "exec")
    (experiment,) = experiments_from_file(folder / "experiment.yml")
    assert (experiment.name, experiment.run) == ("my-project-2", "PPO")


def test_the_job_file_makes_a_batch_script(tmp_path: Path) -> None:
    init(str(tmp_path / "project"))
    job = ["submit", "-f", str(tmp_path / "project/job.yml"), "--scheduler", "slurm", "--dry-run"]
    result = CliRunner().invoke(main, job)
    assert result.exit_code == 0, result.output
    assert "#SBATCH --job-name=project" in result.output
    assert "train -f experiment.yml" in result.output


def test_what_is_taken_from_the_examples_is_as_there() -> None:
    copies = {
        "client/shoal.h": "c/shoal.h",
        "lines/oscillator.c": "c/oscillator.c",
        "fmu/heater.c": "fmu/heater.c",
        "fmu/build_fmu.py": "fmu/build_fmu.py",
        "case/case/control.txt.template": "case/template/control.txt.template",
    }
    for template, example in copies.items():
        assert (TEMPLATES / f"{template}.template").read_text() == (EXAMPLES / example).read_text(), template


def test_an_empty_folder_is_taken_and_another_is_not(tmp_path: Path) -> None:
    assert init(str(tmp_path)).exit_code == 0
    (tmp_path / "environment.py").write_text("mine")
    again = init(str(tmp_path))
    assert again.exit_code == 2
    assert again.output == f"Error: {tmp_path} is not empty; give the name of a new folder\n"
    assert (tmp_path / "environment.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["{}/new", "--kind", "openfoam"], "'openfoam' is not one of"),
        (["{}/file"], "cannot be made: File exists"),
        (["{}/file/below"], "cannot be made: Not a directory"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "file").touch()
    result = init(*(argument.format(tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_the_command_that_is_told_can_be_typed(tmp_path: Path) -> None:
    folder = tmp_path / "my strange folder-é 1"
    result = init(str(folder), "--kind", "gym")
    (command,) = re.findall(r"^Train it: (cd .*) && shoal train experiment.yml$", result.output, re.MULTILINE)
    done = subprocess.run(["sh", "-c", f"{command} && pwd"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{folder}\n"
