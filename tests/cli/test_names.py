"""Runs by their names, runs that begin with the policy of another, and runs that go on with other settings."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import fake_sweeps
import numpy as np
import pytest
from click.testing import CliRunner, Result

from shoal import Policy
from shoal.cli.main import main
from shoal.config.sweep import Setting
from shoal.config.yaml_files import load_text
from shoal.reports.records import new_record
from shoal.runs.checkpoints import read_checkpoint

SMALL = ["--set", "train_batch_size=128", "--set", "num_envs_per_worker=4", "--set", "num_sgd_iter=1", "--quiet"]
VALUES = ["--set", "timesteps_per_iteration=128", "--stop", "training_iteration=1", "--quiet"]
FILTER = ["--set", "observation_filter=MeanStdFilter"]


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="shoal")


def trained(*arguments: str) -> Path:
    """Train, and give the run's folder."""
    result = shoal("train", *arguments)
    assert result.exit_code == 0, result.output
    return Path(next(line for line in result.output.splitlines() if line.startswith("  run")).split()[1]).expanduser()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two runs of one name, and one of another."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        trained("CartPole-v1", *SMALL, *FILTER, "--stop", "training_iteration=2")
        trained("CartPole-v1", *SMALL, *FILTER, "--stop", "training_iteration=2", "--new")
        trained("CartPole-v1", "--run", "dqn", *VALUES, "--name", "values")
    return folder


@pytest.fixture(autouse=True)
def at_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)


def newest(home: Path, name: str) -> Path:
    runs = [path for path in (home / "shoal_results" / name).iterdir() if (path / "experiment.json").exists()]
    return max(runs, key=lambda run: (run / "experiment.json").stat().st_mtime_ns)


def restored(text: str) -> object:
    """What the one experiment of a file begins with."""
    (experiment,) = load_text(text, "file").tree.values()
    return experiment["restore"]


def params(checkpoint: Path) -> np.ndarray:
    return read_checkpoint(checkpoint).state.arrays["policy/params"]


def test_the_newest_run_of_a_name_is_meant_and_told(home: Path) -> None:
    run = newest(home, "CartPole-v1")
    shown = f"~/{run.relative_to(home)}"
    for command in (["model"], ["evaluate", "--steps", "5"]):
        result = shoal(command[0], "CartPole-v1", *command[1:])
        assert result.exit_code == 0, result.output
        assert result.output.startswith(f"CartPole-v1 is {shown}\n")
        assert f"{shown}/checkpoint_000002" in result.output
    assert shoal("resume", "CartPole-v1").output.startswith(f"CartPole-v1 is {shown}\n{shown} is finished")
    assert shoal("model", f"CartPole-v1/{run.name}/checkpoint_000002").exit_code == 0
    assert (Policy.load("CartPole-v1").network.params == params(run / "checkpoint_000002")).all()


def test_a_newest_run_without_a_checkpoint_hides_no_other(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results = tmp_path / "results"
    good = results / "pole" / "PPO_CartPole-v1_aaaaa_2026-01-01_00-00-00"
    shutil.copytree(newest(home, "CartPole-v1"), good)
    (good / ".started").unlink()  # as of an earlier version, so that the names tell which is newer
    bare = good.with_name("PPO_CartPole-v1_bbbbb_2026-01-02_00-00-00")
    bare.mkdir()
    shutil.copy(good / "experiment.json", bare)
    for command in ("model", "evaluate"):
        more = ["--episodes", "1"] if command == "evaluate" else []
        result = shoal(command, "pole", "--results-dir", str(results), *more)
        assert result.exit_code == 0, result.output
        assert f"pole is results/pole/{good.name}" in result.output
    assert f"The newest run, {bare}, has no checkpoint; using {good.name}." in caplog.text
    assert Policy.load(good.parent).compute_single_action(np.zeros(4)) is not None
    restored = shoal("train", "CartPole-v1", *FILTER, "--restore", str(good.parent), "--dry-run")
    assert f"{good}/checkpoint_000002" in restored.output
    # What was begun last is what goes on.
    assert f"is results/pole/{bare.name}" in shoal("resume", "pole", "--results-dir", str(results), "--quiet").output


def test_a_finished_run_changes_nothing_and_the_next_line_to_type_does(home: Path) -> None:
    run = newest(home, "CartPole-v1")
    result = shoal("resume", str(run), "--set", "lr=1e-4", "--set", "stop.training_iteration=1")
    assert result.exit_code == 0, result.output
    assert "->" not in result.output
    assert result.output.rstrip().endswith("--stop timesteps_total=512 --set lr=0.0001")


CHANGES = """
import os
from gymnasium.envs.classic_control import CartPoleEnv

class Changes(CartPoleEnv):
    def __init__(self):
        super().__init__()
        os.chdir("/")
"""


def test_paths_are_told_from_where_the_user_is(tmp_path: Path) -> None:
    (tmp_path / "changes.py").write_text(CHANGES)
    words = ["changes.py:Changes", *SMALL, "--stop", "training_iteration=1", "--results-dir", str(tmp_path / "results")]
    result = shoal("train", *words)
    assert result.exit_code == 0, result.output
    assert "  evaluate  shoal evaluate results/changes.Changes/" in result.output


def test_a_name_in_another_results_folder(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "shoal_results" / "values", tmp_path / "elsewhere" / "other")
    assert shoal("model", "other").exit_code == 2
    assert shoal("model", "other", "--results-dir", "elsewhere").exit_code == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Cartpole", "and none of that name in ~/shoal_results; did you mean CartPole-v1?"),
        ("xyz", "and none of that name in ~/shoal_results; there are CartPole-v1, "),
        ("~/shoal_results", "contains several experiments: CartPole-v1, "),
        ("./xyz", "there is no run at "),
    ],
)
def test_what_is_there_for_who_names_no_run(text: str, sentence: str) -> None:
    for command in ("model", "evaluate", "resume"):
        result = shoal(command, text)
        assert result.exit_code == 2
        assert len(result.output.splitlines()) == 1
        assert sentence in result.output


def test_of_a_sweep_it_is_the_best_trial(home: Path) -> None:
    made = fake_sweeps.sweep(Setting("config.lr", "grid_search", (1e-3, 1e-4)), name="searched")
    folder = home / "shoal_results" / "searched" / "sweep_00000_2026-01-01_00-00-00"
    records = []
    for number, score in enumerate((5.0, 9.0, 7.0)):
        last = {"episode_reward_mean": score, "training_iteration": 2.0}
        record = new_record(number, number, {"config.lr": 1e-3}, None)
        records.append(dataclasses.replace(record, status="finished", last_result=last))
        shutil.copytree(newest(home, "CartPole-v1"), folder / record.folder)
    fake_sweeps.write_sweep(folder, made, records)
    shown = f"~/{folder.relative_to(home)}"
    for text in ("searched", str(folder)):
        result = shoal("model", text)
        assert result.exit_code == 0, result.output
        assert result.output.startswith(f"{text} is the sweep {shown}; its best trial is 00001\n{shown}/trials/00001/")
    result = shoal("train", "CartPole-v1", *FILTER, "--restore", "searched", "--dry-run")
    assert restored(result.output) == f"{folder}/trials/00001/checkpoint_000002"


def test_a_new_run_begins_with_weights_and_filter_of_another(home: Path) -> None:
    source = newest(home, "CartPole-v1") / "checkpoint_000002"
    same = ["CartPole-v1", "--name", "tuned", *SMALL, *FILTER, "--restore", "CartPole-v1", "--set", "lr=1e-12"]
    result = shoal("train", *same, "--stop", "training_iteration=1")
    assert result.exit_code == 0, result.output
    taken = f"It starts with the weights, observation filter and reward scale of {source}; optimiser, counters, "
    assert taken in result.output
    run = newest(home, "tuned")
    before, after = read_checkpoint(source).state, read_checkpoint(run).state
    # With a learning rate of nothing the weights stay what they were, and the filter has seen one batch more.
    np.testing.assert_allclose(after.arrays["policy/params"], before.arrays["policy/params"], atol=1e-8)
    counts = [state.values["policy"]["filter"]["count"] for state in (before, after)]
    assert counts[1] == counts[0] + 128
    assert (after.values["training_iteration"], after.values["learner"]["optimizer"]["steps"]) == (1, 2)
    scales = [state.values["learner"]["rewards"]["count"] for state in (before, after)]
    assert scales[1] == scales[0] + 128
    assert json.loads((run / "experiment.json").read_text())["restore"] == str(source)
    assert restored((run / "config.yaml").read_text()) == str(source)
    # The same command goes on with it; nothing is taken a second time.
    again = shoal("train", *same, "--stop", "training_iteration=2")
    assert f"in ~/{run.relative_to(home)}\nIt continues from checkpoint_000001." in again.output
    assert "It starts with" not in again.output
    assert read_checkpoint(run).state.values["policy"]["filter"]["count"] == counts[1] + 128
    assert shoal("resume", "tuned", "--stop", "training_iteration=3", "--quiet").exit_code == 0
    assert read_checkpoint(run).state.values["policy"]["filter"]["count"] == counts[1] + 256


def test_dqn_takes_its_target_network_too(home: Path) -> None:
    source = newest(home, "values")
    late = ["--set", "learning_starts=100000"]
    run = trained("CartPole-v1", "--run", "DQN", *VALUES, *late, "--name", "more", "--restore", str(source))
    state = read_checkpoint(run).state
    for name in ("policy/params", "learner/target"):
        np.testing.assert_array_equal(state.arrays[name], params(next(source.glob("checkpoint_*"))))


def test_a_policy_is_taken_in_a_file_and_by_another_algorithm_of_its_kind(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text(
        "trusted:\n  env: CartPole-v1\n  run: TRPO\n  restore: CartPole-v1\n  stop: {training_iteration: 1}\n"
        "  config: {train_batch_size: 128, num_envs_per_worker: 4, observation_filter: MeanStdFilter}\n"
    )
    found = restored((trained("x.yml", "--quiet") / "config.yaml").read_text())
    assert found == f"{newest(home, 'CartPole-v1')}/checkpoint_000002"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["CartPole-v1", "--set", "fcnet_hiddens=[8]"],
            "model.fcnet_hiddens is [64, 64] there and [8] here, observation_filter is MeanStdFilter there and "
            "NoFilter here; add --set 'config.model.fcnet_hiddens=[64, 64]' "
            "--set config.observation_filter=MeanStdFilter",
        ),
        (["CartPole-v1", "--run", "DQN"], "is of PPO, whose network DQN cannot use; set --run PPO"),
        (["Acrobot-v1", *FILTER], "has other observations: Box(4) there, Box(6) here"),
        (["CartPole-v1", *FILTER, "--set", "framework=torch"], "(MLP there, TorchNetwork here: use the same"),
        (["CartPole-v1", "--restore", "nowhere"], "there is no run at "),
    ],
)
def test_what_does_not_fit_is_said(arguments: list[str], sentence: str, home: Path) -> None:
    before = set((home / "shoal_results").glob("*/*"))
    result = shoal("train", "--restore", "CartPole-v1", *arguments, "--name", "unfit", "--quiet")
    assert result.exit_code == 2
    assert sentence in result.output.splitlines()[-1]
    assert set((home / "shoal_results").glob("*/*")) == before


def test_a_run_goes_on_with_other_settings(tmp_path: Path) -> None:
    run = trained("CartPole-v1", *SMALL, "--stop", "training_iteration=1", "--results-dir", str(tmp_path))
    change = ["--set", "lr=1e-4", "--set", "checkpoint_freq=5", "--set", "evaluation_config.explore=true"]
    result = shoal("resume", str(run), *change, "--stop", "training_iteration=2", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[:4] == [
        "stop.training_iteration: 1 -> 2",
        "checkpoint_freq: 10 -> 5",
        "config.lr: 0.0007 -> 0.0001",
        "config.evaluation_config.explore: false -> true",
    ]
    assert json.loads((run / "experiment.json").read_text())["config"]["lr"] == 1e-4
    assert json.loads((run / "result.json").read_text().splitlines()[-1])["learner"]["cur_lr"] == 1e-4


def test_what_cannot_change_in_a_run_is_refused_with_the_line_to_type(home: Path) -> None:
    run = newest(home, "CartPole-v1")
    result = shoal("resume", str(run), "--set", "fcnet_hiddens=[8]", "--set", "seed=3", "--set", "lr=1")
    assert result.exit_code == 2
    assert result.output.startswith(
        "Error: config.model.fcnet_hiddens, config.seed: cannot change in a run that continues"
    )
    assert (
        f"shoal train -f {run}/config.yaml --restore {run} --set 'config.model.fcnet_hiddens=[8]' --set config.seed=3\n"
        in result.output
    )
    line = f"train -f {run}/config.yaml --restore {run} --set config.seed=3 --dry-run".split()
    assert shoal(*line).exit_code == 0
    assert "did you mean config.lr?" in shoal("resume", str(run), "--set", "config.lrr=1").output
