"""`shoal reproduce`, `fork` and `bisect`: a run trained once more."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from desks import Desk

from shoal.cli.main import main
from shoal.reports.records import TrialRecord, results_of, trial_folder, write_trials

ENV = """
import gymnasium, numpy as np
import helper

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.steps += 1
        obs = self.look()
        return obs, float(action) * obs[0] ** helper.POWER, False, self.steps >= 20, {}
"""


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Path]:
    """A run of the user's own environment that keeps its code; the code beside it has changed since."""
    desk = Desk.new(tmp_path_factory.mktemp("coded"))
    (desk.work / "my_env.py").write_text(ENV)
    (desk.work / "helper.py").write_text("POWER = 1\n")
    small = ["--set", "train_batch_size=128", "--set", "num_envs_per_worker=2", "--set", "num_sgd_iter=1"]
    stop = ["--stop", "training_iteration=3", "--checkpoint-freq", "2", "--quiet", "--with-code"]
    done = desk.shoal("train", "my_env.py:Mine", *small, *stop)
    assert done.returncode == 0, done.stderr
    (desk.work / "helper.py").write_text("POWER = 3\n")
    (run,) = desk.runs()
    return desk, run


def test_a_run_is_reproduced_from_its_folder_alone(coded: tuple[Desk, Path]) -> None:
    desk, run = coded
    before = sorted(path.name for path in run.rglob("*"))
    done = desk.shoal("reproduce", str(run), "--iterations", "2")
    assert done.stdout.splitlines() == ["iteration 1: identical", "iteration 2: identical", "identical to iteration 2"]
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in run.rglob("*")) == before


def test_a_strangers_copy_of_code_is_named_as_what_would_run(coded: tuple[Desk, Path], tmp_path: Path) -> None:
    refused = coded[0].shoal("reproduce", str(coded[1]), XDG_STATE_HOME=str(tmp_path))
    assert refused.returncode == 2
    assert f"env 'my_env.py:Mine' (looked for in {coded[1] / 'code'})" in refused.stderr


@pytest.mark.slow
def test_other_code_is_named_with_the_iteration_that_it_changes(coded: tuple[Desk, Path], tmp_path: Path) -> None:
    desk, run = coded
    copy = shutil.copytree(run, tmp_path / run.name)
    shutil.rmtree(copy / "code")
    done = desk.shoal("reproduce", str(copy))
    assert done.returncode == 1
    assert "it first differs at iteration 1, in weights and optimiser" in done.stdout
    assert "the states after iteration 2:" in done.stdout
    assert "what is different here:\n  code helper.py: " in done.stdout
    told = json.loads(desk.shoal("reproduce", str(copy), "--json").stdout)
    assert (told["differs_at"], told["identical_to"], told["compared_at"]) == (1, 0, 2)


@pytest.mark.slow
def test_code_that_came_with_a_stranger_s_run_is_not_run(coded: tuple[Desk, Path], tmp_path: Path) -> None:
    desk, run = coded
    other = {"XDG_STATE_HOME": str(tmp_path)}
    refused = desk.shoal("reproduce", str(run), **other)
    assert refused.returncode == 2
    assert "is not a run of yours, and would run env 'my_env.py:Mine'" in refused.stderr
    assert (
        "identical to iteration 1" in desk.shoal("reproduce", str(run), "--iterations", "1", "--trust", **other).stdout
    )
    copy = shutil.copytree(run, tmp_path / run.name)
    (copy / "code" / "helper.py").write_text("POWER = 1  # and more\n")
    done = desk.shoal("reproduce", str(copy))
    assert done.returncode == 1
    assert "helper.py is not what was kept (SHA-256 differs)" in done.stderr


BURSTING = """
import gymnasium, numpy as np

class Bursting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config):
        self.index, self.steps = config.env_index, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.bursts = 0, self.np_random.random() < 0.03
        return self.look(), {}

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.steps += 1
        self.episode += 1
        obs = self.look()
        if self.bursts and self.episode == 7:
            obs[0] = 3e38  # which a network of single precision cannot multiply
            with open("bursts", "a") as file:
                print(self.index, self.steps, file=file)
        return obs, float(action), False, self.episode == 20, {}
"""
SMALL = ("--set", "num_envs_per_worker=4", "--set", "report=false", "--seed", "3", "--quiet")


def test_a_run_whose_gradients_were_not_finite_is_bisected(tmp_path: Path) -> None:
    """Really so: one observation of one environment is too large, and the update that meets it is refused."""
    desk = Desk.new(tmp_path)
    (desk.work / "bursting.py").write_text(BURSTING)
    train = ["--set", "train_batch_size=128", "--set", "num_sgd_iter=2", "--set", "sgd_minibatch_size=32"]
    train += ["--set", "model.fcnet_activation=relu", "--stop", "training_iteration=12", "--checkpoint-freq", "2"]
    assert desk.shoal("train", "bursting.py:Bursting", *SMALL, *train).returncode == 0
    (run,) = desk.runs()
    refused = [result["learner"]["refused_minibatches"] for result in results_of(run)]
    bursts = [tuple(map(int, line.split())) for line in (desk.work / "bursts").read_text().splitlines()]
    index, steps = min(bursts, key=lambda burst: burst[1])
    iteration = steps // 32 + 1
    assert iteration > 2, "it is trained again from a checkpoint"
    assert next(place for place, count in enumerate(refused, start=1) if count) == iteration
    done = desk.shoal("bisect", str(run))
    assert (done.returncode, done.stderr) == (0, "")
    again, verdict, watched, *told = done.stdout.splitlines()
    count = f"{refused[iteration - 1]:.0f}"
    assert again == f"iteration {iteration} is trained again"
    assert verdict == f"not finite: {count} refused minibatches in iteration {iteration}"
    assert watched == f"iteration {iteration}: 8 minibatches"
    first = next(line for line in told if "whose gradient is not finite" in line)
    assert first.endswith(f"is the first of {count} whose gradient is not finite")
    assert told[-2].startswith(f"  environment {index}, step {steps % 32}: observation 3e+38, of others at most ")
    shown = subprocess.run(
        [sys.executable, str(run / "bisect" / "show.py")], cwd=desk.work, capture_output=True, text=True, check=True
    )
    lines = [watched, *(line for line in told[:-1] if " KL " not in line)]
    assert shown.stdout.splitlines()[: len(lines)] == lines
    assert shown.stdout.count(" not finite\n") == 1 + int(count)


@pytest.mark.slow
def test_a_run_that_really_collapsed_is_bisected_to_the_update_that_broke_it(tmp_path: Path) -> None:
    """An absurd learning rate in iteration 10 alone, whose own return is still that of the policy before."""
    desk = Desk.new(tmp_path)
    schedule = "lr_schedule=[[0, 0.003], [4607, 0.003], [4608, 3.0], [5119, 3.0], [5120, 0.000001]]"
    train = ["--set", "train_batch_size=512", "--set", schedule]
    assert desk.shoal("train", "CartPole-v1", *SMALL, *train, "--stop", "training_iteration=16").returncode == 0
    (run,) = desk.runs()
    done = desk.shoal("bisect", str(run))
    assert done.returncode == 0, done.stderr
    assert "\ncollapse: episode_reward_mean was " in done.stdout
    assert "\niteration 10: " in done.stdout


def test_mistakes_are_one_sentence(trained: Any, tmp_path: Path) -> None:
    run = trained[2]
    few = CliRunner().invoke(main, ["reproduce", str(run), "--workers", "3"])
    assert few.exit_code == 2
    assert few.output == "Error: --workers: 4 environments cannot be shared among 3; use one of [1, 2, 4]\n"
    copy = shutil.copytree(run, tmp_path / run.name)
    (copy / "chain.jsonl").unlink()
    assert "has no chain.jsonl to compare with" in CliRunner().invoke(main, ["reproduce", str(copy)]).output
    into = CliRunner().invoke(main, ["reproduce", str(run), "--into", str(copy)])
    assert "exists already; give a new folder" in into.output
    late = CliRunner().invoke(main, ["fork", str(run), "--at", "9"])
    assert (late.exit_code, late.output) == (2, f"Error: --at: {run} has 3 iterations (got 9)\n")
    whole = CliRunner().invoke(main, ["bisect", str(run)])
    assert whole.exit_code == 1
    assert "It did not break by either rule:" in whole.output


def test_results_that_cannot_be_read_are_not_a_run_that_did_not_break(trained: Any, tmp_path: Path) -> None:
    copy = shutil.copytree(trained[2], tmp_path / trained[2].name)
    lines = (copy / "result.json").read_bytes()
    (copy / "result.json").write_bytes(b"\0\0\n[1]\n{}\n" + b"[" * 100_000 + b"\n")
    nothing = CliRunner().invoke(main, ["bisect", str(copy)])
    assert nothing.exit_code == 2
    assert "has no result that can be read, so nothing tells where it broke" in nothing.output
    (copy / "result.json").write_bytes(b"\0\0\n" + lines)
    some = CliRunner().invoke(main, ["bisect", str(copy)])
    assert some.exit_code == 1
    assert "1 line of result.json cannot be read and is left out\nIt did not break" in some.output
    (copy / "result.json").unlink()
    (copy / "result.json").mkdir()
    assert "result.json cannot be read (not a regular file)" in CliRunner().invoke(main, ["bisect", str(copy)]).output


def test_checkpoints_and_verify(trained: Any, tmp_path: Path) -> None:
    run = trained[2]
    listed = CliRunner().invoke(main, ["checkpoints", str(run)])
    assert listed.exit_code == 0
    assert listed.output.splitlines()[1].endswith("newest, best, good")
    (told,) = CliRunner().invoke(main, ["checkpoints", str(run), "--json"]).output.splitlines()
    assert json.loads(told)["sha256"].startswith(listed.output.splitlines()[1].split()[4])
    verified = CliRunner().invoke(main, ["verify", str(run)])
    assert verified.exit_code == 0
    assert verified.output.endswith("3 findings, 0 problems\n")
    copy = shutil.copytree(run, tmp_path / run.name)
    (copy / "checkpoint_000003" / "state.json").write_text("{}")
    for command in ("checkpoints", "verify"):
        damaged = CliRunner().invoke(main, [command, str(copy)])
        assert damaged.exit_code == 1
        assert "state.json is not what was saved" in damaged.output
    (row,) = CliRunner().invoke(main, ["checkpoints", str(copy)]).output.splitlines()[1:-1]
    assert "  newest, best, " in row, "what is damaged is still the newest"
    found = [json.loads(line) for line in CliRunner().invoke(main, ["verify", str(copy), "--json"]).output.splitlines()]
    assert [one["verdict"] for one in found] == ["ok", "ok", "problem"]


def test_all_trials_of_a_sweep_are_verified(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    records = [TrialRecord(index, index, {}, 0, "finished", folder=trial_folder(index)) for index in (0, 1)]
    write_trials(tmp_path, records)
    for number in ("00000", "00001"):
        shutil.copytree(trained[2], tmp_path / "trials" / number)
    whole = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert (whole.exit_code, whole.output.splitlines()[-1]) == (0, "7 findings, 0 problems")
    write_trials(tmp_path, [])
    unlisted = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert (unlisted.exit_code, unlisted.output.count("there, and not listed")) == (0, 1), "of a driver that was killed"
    (tmp_path / "outcome.json").write_text("{}")
    unlisted = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert unlisted.exit_code == 1
    assert "trials/00000, trials/00001: there, and not listed" in unlisted.output
    write_trials(tmp_path, records)
    (tmp_path / "trials" / "00001" / "checkpoint_000003" / "manifest.json").unlink()
    harmed = CliRunner().invoke(main, ["verify", str(tmp_path), "--json"])
    found = [json.loads(line) for line in harmed.output.splitlines()]
    assert harmed.exit_code == 1
    assert [Path(one["run"]).name for one in found if one["verdict"] == "problem"] == ["00001"]
    shutil.rmtree(tmp_path / "trials" / "00001")
    gone = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert gone.exit_code == 1
    assert "trials/00001: listed, and gone" in gone.output
    assert gone.output.endswith("4 findings, 1 problem\n")
    shutil.rmtree(tmp_path / "trials")
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).exit_code == 1
    write_trials(tmp_path, [])
    empty = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert (empty.exit_code, empty.output.count("\n")) == (2, 1)
