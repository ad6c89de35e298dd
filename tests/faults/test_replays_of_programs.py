"""An incident of a program, a case, an FMU or MPI ranks is run again, and fails at the same step."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.envs.importing import UserCode
from shoal.runs.incidents import read_incidents

SIMULATORS = Path(__file__).parents[2] / "examples" / "simulators"
SPEAKING = Path(__file__).parents[1] / "unit" / "envs" / "speaking.py"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def failed_run(folder: Path, env: Any, **config: Any) -> Path:
    """A run of one iteration in which environments have failed."""
    settings = {"num_envs_per_worker": 1, "train_batch_size": 20, "num_sgd_iter": 1, "max_env_failures": None, **config}
    experiment = {"env": env, "name": "run", "results_dir": str(folder / "results"), "config": settings}
    list(shoal.run({**experiment, "stop": {"training_iteration": 1}}, new=True))
    (run,) = (folder / "results" / "run").iterdir()
    return run


def fails_again(run: Path, *options: str) -> str:
    entry = read_incidents(run)[-1]
    assert entry["steps_since_seed"] > 0
    done = CliRunner().invoke(main, ["replay", str(run), str(entry["number"]), *options], prog_name="shoal")
    assert done.exit_code == 0, done.output
    assert "It failed again at the same step" in done.output
    return done.output


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_lines(tmp_path: Path, isolation: str) -> None:
    shutil.copy(SPEAKING, tmp_path)
    run = failed_run(tmp_path, {"command": [sys.executable, "speaking.py", "dies"]}, env_isolation=isolation)
    assert "floating point exception" in fails_again(run)


def test_a_case(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    shutil.copytree(SIMULATORS / "case", tmp_path, dirs_exist_ok=True)
    [command] = re.findall(r"cc -O2 .*", (tmp_path / "burgers.c").read_text())
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    (tmp_path / "failing.py").write_text(
        "from burgers_env import Burgers\n\n\n"
        "class Failing(Burgers):\n"
        "    def inputs(self, action):\n"
        "        if self.time == 4:\n"
        "            raise ArithmeticError('no such force')\n"
        "        return super().inputs(action)\n"
    )
    assert "no such force" in fails_again(failed_run(tmp_path, "failing.py:Failing"))


def test_an_fmu(tmp_path: Path) -> None:
    pytest.importorskip("fmpy", reason="FMPy is not installed")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    build = SIMULATORS / "fmu" / "build_fmu.py"
    UserCode.at(build.parent).load_file(str(build)).build("2.0", tmp_path / "heater.fmu")
    env = {"fmu": "heater.fmu", "step_size": 1.0, "stop_time": 40, "reward": "log(3.5 - time)"}
    fails_again(failed_run(tmp_path, env))


def test_mpi_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    for name, value in AS_ROOT.items():
        monkeypatch.setenv(name, value)
    shutil.copy(SPEAKING, tmp_path)
    (tmp_path / "ranks.py").write_text(
        "import os, sys, time\n"
        "rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK', '0')))\n"
        "if rank:\n    time.sleep(1000)\n"
        "os.execv(sys.executable, [sys.executable, 'speaking.py', 'error'])\n"
    )
    env = {"command": [sys.executable, "ranks.py"], "connection": "unix", "timeout_s": 60}
    assert "diverged at t = 3" in fails_again(failed_run(tmp_path, env, env_ranks=2))


FRAIL = """
import gymnasium as gym
import numpy as np


class Frail(gym.Env):
    metadata = {"render_modes": ["human"]}
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.render_mode == "human":
            with open("drawn", "a") as file:
                file.write(f"{self.time}\\n")
        residual = self.time
        if residual == 4:
            raise ArithmeticError("diverged")
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""


def test_a_replay_stops_in_the_debugger_where_it_failed(tmp_path: Path) -> None:
    (tmp_path / "frail.py").write_text(FRAIL)
    run = failed_run(tmp_path, "frail.py:Frail")
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "replay", str(run), "1", "--pdb"],
        input="p residual\nq\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "-> raise ArithmeticError" in done.stdout
    assert "(Pdb) 4" in done.stdout
    assert "It failed again at the same step" in done.stdout
    assert done.returncode == 0, done.stderr


def test_a_replay_in_a_window(tmp_path: Path) -> None:
    (tmp_path / "frail.py").write_text(FRAIL)
    run = failed_run(tmp_path, "frail.py:Frail")
    fails_again(run, "--render")
    assert (tmp_path / "drawn").read_text().split() == ["1", "2", "3", "4"]
