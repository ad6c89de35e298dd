"""What docs/simulators.md says: its experiment is one, its keys exist, and its commands do what it tells."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.settings import AlgorithmConfig
from shoal.envs.faults import KINDS
from shoal.runs.incidents import read_incidents

DIVERGING = """
import gymnasium as gym
import numpy as np

class Diverging(gym.Env):
    metadata = {"render_modes": ["human"]}
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.time == 4:
            raise ArithmeticError("diverged" + " in a window" * (self.render_mode == "human"))
        return np.zeros(2, np.float32), 1.0, self.time == 3 and self.np_random.random() < 0.9, False, {}
"""
PAGE = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text()
ENV = """
import os
import gymnasium as gym
import numpy as np

class Furnace(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        with open(os.path.join(config.scratch_dir, "case"), "w") as file:
            file.write(str(config.port))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.np_random.random() < 0.03 and self.np_random_seed != 0:
            os.abort()
        return np.zeros(2, np.float32), 1.0, self.time == 20, False, {}
"""


def shoal(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *shlex.split(line, comments=True)]
    words = "p self.time\nq\n"  # to the debugger
    return subprocess.run(command, cwd=folder, input=words, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_the_experiment_runs_and_its_failures_run_again(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "furnace.yml").write_text(text.replace("env_restart_delay_s: 2", "env_restart_delay_s: 0.01"))
    (tmp_path / "my_env.py").write_text(ENV)
    (experiment,) = experiments_from_file(tmp_path / "furnace.yml")
    assert experiment.config.isolates_envs
    more = "--stop training_iteration=1 --set train_batch_size=400 --results-dir results"
    done = shoal(f"shoal train -f furnace.yml {more}", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results" / "furnace").iterdir()
    listed = shoal(f"shoal incidents {run}", tmp_path)
    assert listed.returncode == 0
    rows = listed.stdout.splitlines()
    assert re.match(r"1 +20\d\d-.* signal .*SIGABRT", rows[1])
    again = shoal(f"shoal replay {run} 1", tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "It failed again at the same step" in again.stdout
    assert "my_env.py" in again.stdout  # the Python stack of the crash
    missing = shoal(f"shoal replay {run} 10000", tmp_path)
    assert missing.returncode == 2
    assert "there is no incident 10000" in missing.stderr


@pytest.mark.slow
def test_the_commands_on_incidents_end_well(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(DIVERGING)
    more = "--stop training_iteration=1 --set train_batch_size=300 --set max_env_failures=null --results-dir results"
    often = "--set evaluation_interval=1 --set evaluation_duration=10"
    done = shoal(f"shoal train my_env.py:Diverging {more} {often}", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").glob("*/*_*")
    lines = re.findall(r"^ {4}(shoal (?:incidents|replay) RUN.*)$", PAGE, re.MULTILINE)
    listed, *replays = [shoal(line.replace("RUN", str(run)), tmp_path) for line in lines]
    assert listed.returncode == 0, listed.stderr
    assert "1000001" in listed.stdout
    for again in replays:
        assert again.returncode == 0, again.stdout + again.stderr
        assert "It failed again at the same step" in again.stdout
    plain, debugged, shown, evaluated = [again.stdout for again in replays]
    assert "(Pdb) 4" in debugged
    drawn = ["ArithmeticError: diverged in a window" in text for text in (plain, debugged, shown, evaluated)]
    assert drawn == [False, False, True, False]


@pytest.mark.slow
def test_the_command_that_trains_through_every_fault_ends_well(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ {4}(shoal train shoal.envs:FaultEnv.*)$", PAGE, re.MULTILINE)
    file = tmp_path / "faults"
    done = shoal(f"{line} --set train_batch_size=1000 --set env_config.file={file} --results-dir results", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").glob("*/*_*")
    faults = [json.loads(fault)["kind"] for fault in file.read_text().splitlines()]
    kept = read_incidents(run)
    assert len(kept) >= len([kind for kind in faults if kind != "log_flood"]) > 0  # more if the machine is busy


def test_the_keys_and_the_kinds_are_there() -> None:
    keys = set(re.findall(r"^\| `((?:env|max)_\w+)` \|", PAGE, re.MULTILINE))
    assert {"env_step_timeout_s", "max_env_failures"} < keys <= set(AlgorithmConfig.model_fields)
    assert set(KINDS) <= set(re.findall(r"`(\w+)`", PAGE))
    assert f"fails in {'fourteen' if len(KINDS) == 14 else len(KINDS)} ways" in PAGE
