"""What docs/simulators.md says: its experiment is one, its keys exist, and its commands do what it tells."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.settings import AlgorithmConfig
from shoal.envs.faults import KINDS

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
    command = [sys.executable, "-m", *shlex.split(line)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


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


def test_the_keys_and_the_kinds_are_there() -> None:
    keys = set(re.findall(r"^\| `((?:env|max)_\w+)` \|", PAGE, re.MULTILINE))
    assert {"env_step_timeout_s", "max_env_failures"} < keys <= set(AlgorithmConfig.model_fields)
    assert set(KINDS) <= set(re.findall(r"`(\w+)`", PAGE))
    assert f"fails in {'fourteen' if len(KINDS) == 14 else len(KINDS)} ways" in PAGE
