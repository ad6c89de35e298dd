"""An evaluation whose simulator hangs: recorded or not, it goes on, and what failed can be seen again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.runs.incidents import FIRST_OF_EVALUATION, read_incidents

SOLVER = """
import time

import gymnasium as gym
import numpy as np


class Solver(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, float(self.np_random.integers(3))
        self.length = 5 + int(self.place)
        self.hangs = (options or {}).get("hangs", self.np_random.integers(4) == 0)
        return np.array([self.place, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        self.place += float(self.np_random.integers(2))
        if self.hangs and self.time == 3:
            time.sleep(1000)
        obs = np.array([self.place, self.time], np.float32)
        return obs, self.place, self.time == self.length, False, {}

    def render(self):
        return np.full((32, 32, 3), 10 * self.time, np.uint8)
"""


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    (folder / "solver.py").write_text(SOLVER)
    config: dict[str, Any] = {
        "num_envs_per_worker": 2,
        "train_batch_size": 32,
        "num_sgd_iter": 1,
        "env_step_timeout_s": 0.5,
        "max_env_failures": None,
        "model": {"fcnet_hiddens": [8]},
    }
    experiment = {"name": "solver", "env": f"{folder}/solver.py:Solver", "results_dir": str(folder), "config": config}
    list(shoal.run({**experiment, "stop": {"training_iteration": 1}, "checkpoint_at_end": True}, new=True))
    (found,) = (folder / "solver").iterdir()
    return found


def failed_again(run: Path, number: int) -> None:
    done = typed("replay", str(run), str(number))
    assert done.exit_code == 0, done.output
    assert "It failed again at the same step" in done.output


def of_evaluation(run: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_incidents(run) if entry["number"] >= FIRST_OF_EVALUATION]


def report_of(run: Path) -> dict[str, Any]:
    newest = max(run.glob("evaluation_*.json"), key=lambda path: path.stat().st_mtime_ns)
    report: dict[str, Any] = json.loads(newest.read_text())
    return report


def test_it_is_recorded_in_processes_and_its_failures_are_replayed(run: Path, tmp_path: Path) -> None:
    av, parquet = pytest.importorskip("av"), pytest.importorskip("pyarrow.parquet")
    known = len(of_evaluation(run))
    gif, file = tmp_path / "out.gif", tmp_path / "out.parquet"
    done = typed("evaluate", str(run), "--episodes", "8", "--gif", str(gif), "--trajectories", str(file))
    assert done.exit_code == 0, done.output
    report = report_of(run)
    rows = parquet.read_table(file).to_pylist()
    episodes = [[row for row in rows if row["episode"] == k] for k in range(8)]
    assert [len(steps) - 1 for steps in episodes] == report["episode_lengths"]
    assert [sum(row["reward"] for row in steps[:-1]) for steps in episodes] == report["episode_rewards"]
    with av.open(str(gif)) as video:
        assert len(list(video.decode(video=0))) > 25  # of eight episodes, those that failed among them
    incidents = of_evaluation(run)[known:]
    assert len(incidents) == report["env_failures"] > 0
    assert {entry["kind"] for entry in incidents} == {"hang"}
    assert "shoal incidents" in done.output
    failed_again(run, incidents[-1]["number"])


def test_a_case_that_hangs_is_one_that_failed(run: Path, tmp_path: Path) -> None:
    known = len(of_evaluation(run))
    (tmp_path / "cases.csv").write_text("options.hangs,seed\n0,1\n1,7\n0,3\n")
    done = typed("evaluate", str(run), "--cases", str(tmp_path / "cases.csv"))
    assert done.exit_code == 0, done.output
    assert "3 cases, 1 failed" in done.output
    (entry,) = of_evaluation(run)[known:]
    assert entry["evaluation"]["case"] == {"env_config": None, "options": {"hangs": 1}, "seed": 7}
    failed_again(run, entry["number"])


@pytest.mark.slow
def test_incidents_of_evaluations_beside_training_are_kept_too(tmp_path: Path) -> None:
    (tmp_path / "solver.py").write_text(SOLVER)
    config = {"num_envs_per_worker": 2, "train_batch_size": 16, "env_step_timeout_s": 0.5, "max_env_failures": None}
    config |= {"evaluation_interval": 1, "evaluation_duration": 8}
    experiment = {"name": "s", "env": f"{tmp_path}/solver.py:Solver", "results_dir": str(tmp_path), "config": config}
    (result,) = shoal.run({**experiment, "stop": {"training_iteration": 1}}, new=True)
    (found,) = (tmp_path / "s").iterdir()
    kept = of_evaluation(found)
    assert len(kept) == result["evaluation"]["env_failures"] > 0
    assert {entry["training_iteration"] for entry in kept} == {1}
