"""The pages on the seeds: what is in backticks in a column named `here` is run, as far as it goes without a cluster."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.config.yaml_files import load_text
from shoal.version import __version__

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs" / "seeds").glob("*.md") if path.name != "README.md"}
EXAMPLES = ("learning-ray/custom.yml", "learning-ray/custom_env.py", "theta/train_ppo.py")
LAUNCHERS = ("mpirun", "aprun", "srun")
HEADER = "| there | here | what changed, and why |\n|---|---|---|\n"


def typed(page: str) -> list[str]:
    """What stands in the column `here` of a page, in its order."""
    tables = [part.partition("\n\n")[0] for part in PAGES[page].split(HEADER)[1:]]
    rows = [row.strip("|").split("|") for table in tables for row in table.splitlines()]
    assert rows
    assert all(len(row) == 3 for row in rows)
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row[1])]


def parted(command: str) -> tuple[list[str], list[str]]:
    """The words before and after the `--` of a command that runs another."""
    words = shlex.split(command)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def of(program: str) -> list[Any]:
    """Every command of a program on any page."""
    found = [(page, code) for page in PAGES for code in typed(page)]
    chosen = [(page, code) for page, code in found if re.match(rf"(?:{program}) ", f"{code} ")]
    return [pytest.param(code, id=f"{page}: {code}") for page, code in dict.fromkeys(chosen)]


PROGRAMS = rf"shoal (?:train|submit|launch|cluster|logs)|{'|'.join(LAUNCHERS)}|python|pip"


@pytest.fixture(scope="module")
def ray_variables() -> Iterator[dict[str, str]]:
    """One Ray for the module, which commands in this process find running, and others by these variables."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    found = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    yield found | ({"RAY_AUTH_TOKEN_PATH": str(token)} if token.exists() else {})
    ray.shutdown()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that is the home too, with the files that the pages speak of."""
    for name in EXAMPLES:
        shutil.copy(ROOT / "examples" / name, tmp_path)
    for text in PAGES.values():
        for name, block in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            (tmp_path / name).write_text(block.replace("10000", "1"))
    for file in (ROOT / "examples" / "trpo").glob("go_*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "hosts.txt").write_text("n1\nn2\n")
    (tmp_path / "examples" / "trpo").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "")  # a command that is given an address sets it in this process
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shoal(*words: str) -> str:
    done = CliRunner().invoke(main, list(words), prog_name="shoal")
    assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception!r}"
    return done.output


def parsed(command: str, *words: str) -> dict[str, Any]:
    """The options of a subcommand, which is not run."""
    context = main.make_context("shoal", [command, *words])
    found = main.get_command(context, command)
    assert found is not None
    return found.make_context(command, list(words), parent=context).params


def check_inner(words: list[str]) -> None:
    """What a launcher or a job would run."""
    if words[0] == "shoal":
        shoal(*words[1:], "--dry-run")
    else:
        assert words[0] == "python"
        assert any(Path(word).is_file() for word in words)


def run_python(words: list[str], folder: Path, variables: dict[str, str]) -> str:
    environment = {**os.environ, "HOME": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_rows_and_no_command_that_is_not_run(page: str) -> None:
    items = typed(page)
    assert items
    for item in items:
        if not re.match(PROGRAMS, item):
            compile(item, page, "exec")


@pytest.mark.repeats(3, slow=4)
@pytest.mark.parametrize("command", of("shoal train"))
def test_training_lines_train(command: str, ray_variables: dict[str, str], desk: Path) -> None:
    if "ALE/" in command:
        pytest.importorskip("ale_py")
        command += " --set config.train_batch_size=40 --set config.num_envs_per_worker=1"
    if "go_env.py" in command:
        opponent = "gnugo" if shutil.which("gnugo", path=f"{os.environ['PATH']}:/usr/games") else "random"
        command = command.replace("train_batch_size=2000", "train_batch_size=20").replace("gnugo", opponent)
        command += " --set config.num_envs_per_worker=1"
    command = re.sub(r"--num-workers \d+|--num-cpus \d+", lambda flag: shrunk(flag[0]), command)
    command = re.sub(r"--stop \S+", "", command)
    words = shlex.split(command.replace("--ray-address auto", f"--ray-address {ray_variables['RAY_ADDRESS']}"))
    printed = shoal(*words[1:], "--stop", "training_iteration=1", "--quiet")
    assert "Finished: training_iteration 1 >= 1" in printed
    if "--num-cpus" in command:
        (config,) = desk.glob("shoal_results/*/*/config.yaml")
        assert "num_workers: 1\n" in config.read_text(), "one of two cores is this process"


def shrunk(flag: str) -> str:
    return "--num-cpus 2" if flag.startswith("--num-cpus") else "--num-workers 1"


@pytest.mark.repeats(2)
@pytest.mark.parametrize("command", of("shoal submit"))
def test_submitting_lines_write_scripts(command: str, desk: Path) -> None:
    words, inner = parted(command)
    dry = [] if "--dry-run" in words else ["--dry-run"]
    script = shoal(*words[1:], *dry, *(["--", *inner] if inner else []))
    assert script.startswith("#!/bin/bash")
    assert "shoal launch" in script
    check_inner(inner or shlex.split(load_text((desk / "job.yml").read_text(), "job.yml").tree["command"]))
    if "cobalt" in words:
        for directive in ("-A datascience", "-t 60", "-q debug-cache-quad", "-n 2"):
            assert re.search(rf"^#COBALT {directive}$", script, re.MULTILINE), script
    else:
        for directive in ("job-name=cartpole-multiple-nodes", "time=00:10:00", "nodes=3", "account=rlwater"):
            assert f"#SBATCH --{directive}\n" in script
        assert "36" in script
        assert ("module purge" in script) == ("-f" in words)


@pytest.mark.parametrize("command", of(f"shoal launch|{'|'.join(LAUNCHERS)}"))
def test_launching_lines_are_right(command: str, desk: Path) -> None:
    words, inner = parted(command)
    options = words[words.index("launch") + 1 :]
    parsed("launch", *options, "--", *inner)
    check_inner(inner)


@pytest.mark.parametrize("command", of("shoal (?:logs|jobs|cancel)"))
def test_other_lines_are_right(command: str) -> None:
    _, name, *words = shlex.split(command)
    parsed(name, *words)


@pytest.mark.parametrize("command", of("shoal cluster"))
def test_cluster_lines_write_a_file(command: str, desk: Path) -> None:
    wheel = desk / f"shoal_rl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("shoal/__init__.py", "")
    printed = shoal(*shlex.split(command)[1:], "--wheel", str(wheel))
    tree = load_text(printed.partition("\n")[2] if printed.startswith("The") else printed, "cluster.yaml").tree
    head, worker = tree["available_node_types"]["head"], tree["available_node_types"]["worker"]
    assert tree["cluster_name"] == "my-ray-cluster"
    assert (head["node_config"]["InstanceType"], worker["node_config"]["InstanceType"]) == ("c4.8xlarge", "c4.4xlarge")
    assert worker["max_workers"] == 2


@pytest.mark.parametrize("command", of("pip"))
def test_installing_lines_name_extras_that_there_are(command: str) -> None:
    extras = importlib.metadata.metadata("shoal-rl").get_all("Provides-Extra")
    assert extras is not None
    assert set(re.findall(r"\[(\w+)\]", command)) <= set(extras)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != "ec2"])
def test_the_python_of_a_page_runs(page: str, ray_variables: dict[str, str], desk: Path) -> None:
    if page == "theta":
        pytest.importorskip("torch")
    lines = [item for item in typed(page) if not re.match(PROGRAMS, item)]
    fewer = re.sub(r'("num_workers"(?:: |\] = ))\d', r"\g<1>1", "\n".join(lines))
    (desk / "rows.py").write_text(fewer + "\n")
    printed = run_python(["rows.py"], desk, ray_variables)
    if page == "theta":
        assert re.search(r"^Final checkpoint saved at .*/checkpoint_000001$", printed, re.MULTILINE)
    if page == "learning-ray":
        assert re.search(r"^total +\d+", printed, re.MULTILINE | re.IGNORECASE), "the summary is printed"


@pytest.mark.slow
@pytest.mark.parametrize("command", of("python"))
def test_scripts_of_the_pages_run(command: str, ray_variables: dict[str, str], desk: Path) -> None:
    run_python(shlex.split(command)[1:], desk, ray_variables)
    (folder,) = desk.glob("shoal_results/CartPole-v0/sweep_*")
    assert "num_workers: 1\n" in (folder / "trials/00000/config.yaml").read_text()


def test_the_trainer_script_of_the_page_is_the_example() -> None:
    (block,) = re.findall(r"^```python\n# simple_trainer.py\n(.*?)^```", PAGES["eagle"], re.MULTILINE | re.DOTALL)
    assert block == (ROOT / "examples" / "eagle" / "simple_trainer.py").read_text()


def test_the_trainer_script_answers_its_flags(desk: Path) -> None:
    def answer(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "simple_trainer.py", *words]
        return subprocess.run(command, cwd=desk, capture_output=True, text=True, timeout=240, check=False)

    refused = answer("--redis-password", "secret")
    assert refused.returncode == 2
    assert "a token of its own protects every cluster" in refused.stderr
    assert answer("--local-mode", "--num-cpus", "4").returncode == 2
    wrong = answer("--run", "DDQN", "--local-mode")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Error: run: must be PPO")
    local = answer("--local-mode", "--run", "PPO", "--name-env", "CartPole-v1")
    assert local.returncode == 0, local.stderr
    assert "training_iteration: 1" in local.stdout
    assert "num_workers: 0\n" in next(desk.glob("shoal_results/CartPole-v1/PPO_*/config.yaml")).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("command", of("mpirun"))
def test_the_lines_of_mpi_run_as_they_are(command: str, desk: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    pytest.importorskip("torch")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
    oversubscribed = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    done = subprocess.run(
        shlex.split(command),
        cwd=desk,
        env={**os.environ, "PATH": path, **root, **oversubscribed},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
