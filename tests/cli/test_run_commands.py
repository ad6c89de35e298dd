"""The flags of `shoal train`, `resume` and `evaluate`, up to where training begins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shoal.cli.evaluate import table
from shoal.cli.main import main
from shoal.config.yaml_files import load_text
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.folders import runs_of
from shoal.runs.resuming import stored_tree


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def resolved(*arguments: str) -> dict[str, Any]:
    result = shoal("train", *arguments, "--dry-run")
    assert result.exit_code == 0, result.output
    tree = load_text(result.output, "output").tree
    assert isinstance(tree, dict)
    return tree


def test_every_flag_arrives() -> None:
    tree = resolved(
        *("CartPole-v1", "--run", "PPO", "--num-workers", "3", "--num-gpus", "0.5", "--seed", "7", "--name", "my runs"),
        *("--results-dir", "/data", "--checkpoint-freq", "4", "--no-checkpoint-at-end"),
        *("--stop", "timesteps_total=1e5", "--stop", "time_total_s=90m", "--set", "config.lr=1e-3"),
        *("--set", "config.model.fcnet_hiddens=[8, 8]"),
    )["my runs"]
    assert tree["run"] == "PPO"
    assert tree["stop"] == {"timesteps_total": 100000, "time_total_s": 5400}
    assert (tree["results_dir"], tree["checkpoint_freq"], tree["checkpoint_at_end"]) == ("/data", 4, False)
    config = tree["config"]
    assert (config["env"], config["num_workers"], config["num_gpus"], config["seed"]) == ("CartPole-v1", 3, 0.5, 7)
    assert (config["lr"], config["model"]["fcnet_hiddens"]) == (1e-3, [8, 8])


def test_the_name_is_the_environments(tmp_path: Path) -> None:
    assert list(resolved("CartPole-v1")) == ["CartPole-v1"]
    (tmp_path / "my_env.py").write_text("class MyEnv: ...\n")
    assert list(resolved("--env", f"{tmp_path}/my_env.py:MyEnv")) == ["my_env.MyEnv"]


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "two.yml"
    body = "{env: CartPole-v1, run: PPO, stop: {episode_reward_mean: 475}, config: {lr: 0.1, gamma: 0.9}}"
    file.write_text(f"first: {body}\nsecond: {body}\n")
    tree = resolved("-f", str(file), "--stop", "training_iteration=2", "--set", "config.lr=0.2", "--env", "Acrobot-v1")
    assert list(tree) == ["first", "second"]
    for experiment in tree.values():
        assert experiment["stop"] == {"training_iteration": 2}
        config = experiment["config"]
        assert (config["lr"], config["gamma"], config["env"]) == (0.2, 0.9, "Acrobot-v1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no environment to train on"),
        (["CartPole-v1", "--env", "CartPole-v1"], "given twice"),
        (["CartPole-v1", "--local-mode", "--num-workers", "2"], "--local-mode means no workers"),
        (["CartPole-v1", "--num-workers", "-1"], "--num-workers"),
        (["CartPole-v1", "--stop", "timesteps_total"], "write NAME=LIMIT"),
        (["CartPole-v1", "--stop", "timesteps_total="], "write NAME=LIMIT"),
        (["CartPole-v1", "--stop", "seed=1", "--stop", "seed=2"], "given twice"),
        (["CartPole-v1", "--stop", "timestep_total=5"], "did you mean timesteps_total?"),
        (["CartPole-v1", "--set", "lr=-5"], "config.lr"),
        (["CartPole-v1", "--set", "config.lr"], "write KEY=VALUE"),
        (["CartPole-v1", "--run", "PPP"], "did you mean PPO?"),
        (["CartPole-v1", "--num-workers", "3", "--num-cpus", "2"], "need 4 (got 2); allow more, or --num-workers 1"),
        (["CartPole-v1", "--num-cpus", "100000"], "this machine has"),
        (["CartPole-v1", "--ray-address", "host:6379"], "add --num-workers N"),
        (["-f", "no_such_file.yml"], "no such file"),
        (["CartPole-v1", "--results-dir", "$NO_SUCH_VAR/x", "--stop", "timesteps_total=1"], "is not set"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str) -> None:
    result = shoal("train", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_one_name_for_two_experiments_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "two.yml"
    file.write_text("first: {env: CartPole-v1}\nsecond: {env: CartPole-v1}\n")
    assert "the same name" in shoal("train", "-f", str(file), "--name", "x").output


def test_local_mode_means_no_workers() -> None:
    (experiment,) = resolved("CartPole-v1", "--set", "config.num_workers=0", "--local-mode").values()
    assert experiment["config"]["num_workers"] == 0


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_no_run_is_one_sentence(tmp_path: Path, command: str) -> None:
    result = shoal(command, str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert result.output.startswith("Error: there is no run at")
    assert len(result.output.splitlines()) == 1


def test_evaluate_takes_one_length() -> None:
    assert shoal("evaluate", "x", "--steps", "1", "--episodes", "1").exit_code == 2


def test_train_resume_evaluate(tmp_path: Path) -> None:
    small = ["--set", "config.train_batch_size=128", "--set", "config.num_sgd_iter=1", "--seed", "1"]
    train = ["train", "CartPole-v1", "--results-dir", str(tmp_path / "a b"), *small]
    result = shoal(*train, "--stop", "training_iteration=2")
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "a b" / "CartPole-v1").iterdir()
    assert f"shoal evaluate '{folder}'" in result.output
    assert len([line for line in result.output.splitlines() if line.startswith("iter ")]) == 2
    assert "\x1b" not in result.output
    again = shoal(*train, "--stop", "training_iteration=2")
    assert again.exit_code == 0
    assert "is finished: training_iteration 2 >= 2" in again.output
    quiet = shoal("resume", str(folder), "--stop", "training_iteration=3", "--quiet")
    assert quiet.exit_code == 0, quiet.output
    assert "checkpoint_000003" in quiet.output
    assert "iter " not in quiet.output
    for arguments in (["--episodes", "3"], ["--steps", "50", "--explore", "--seed", "3"], ["--env", "CartPole-v1"]):
        evaluated = shoal("evaluate", str(folder), *arguments)
        assert evaluated.exit_code == 0, evaluated.output
        assert "episode_reward" in evaluated.output
    assert list(folder.glob("evaluation_*.json"))
    for wrong in (["--run", "DQN"], ["--env", "Acrobot-v1"]):
        assert shoal("evaluate", str(folder), *wrong).exit_code == 2
    assert shoal("evaluate", str(folder / "checkpoint_000002" / "checkpoint-2")).exit_code == 0


def test_the_evaluation_table_has_a_line_for_each_number() -> None:
    row = {"mean": 12.0, "ci_low": 10.255, "ci_high": 13.0, "min": -1.0, "max": 1e-4}
    head, reward, drag = table({"episode_reward": row, "drag": {**row, "ci_low": None}}).splitlines()
    assert head.split() == ["mean", "95", "%", "interval", "min", "max"]
    assert reward.split() == ["episode_reward", "12", "10.26", "to", "13", "-1", "0.0001"]
    assert drag.split() == ["drag", "12", "-", "-1", "0.0001"]
    assert len(head) == len(reward) == len(drag)
    assert table({}) == "  no episode ended"


def test_ray_address_is_kept_for_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    seen: list[str] = []
    monkeypatch.setattr("shoal.cli.run_view.follow", lambda *_: seen.append(os.environ["RAY_ADDRESS"]))
    result = shoal(
        *("train", "CartPole-v1", "--num-workers", "1", "--ray-address", "host:6379", "--results-dir", str(tmp_path))
    )
    assert result.exit_code == 0, result.output
    assert seen == ["host:6379"]


SEEDS = ("train", "CartPole-v1", "--run", "PPO", "--set", "config.train_batch_size=64", "--quiet")


def test_seeds_are_ordinary_runs_with_the_weights_of_their_own_commands(tmp_path: Path) -> None:
    stop = ("--stop", "training_iteration=2")
    together, alone = tmp_path / "together", tmp_path / "alone"
    result = shoal(*SEEDS, *stop, "--seed", "3", "--seeds", "2", "--results-dir", str(together))
    assert result.exit_code == 0, result.output
    assert "CartPole-v1, seed 4 (2 of 2 runs)" in result.output
    runs = seeds_in(together)
    assert sorted(runs) == [3, 4]
    for seed in (3, 4):
        assert shoal(*SEEDS, *stop, "--seed", str(seed), "--results-dir", str(alone)).exit_code == 0
    for seed, folder in seeds_in(alone).items():
        assert weights_in(runs[seed]) == weights_in(folder)
    assert weights_in(runs[3]) != weights_in(runs[4])


def test_the_same_command_trains_the_seeds_that_are_left(tmp_path: Path) -> None:
    command = (*SEEDS, "--stop", "training_iteration=1", "--results-dir", str(tmp_path), "--seeds")
    assert shoal(*command, "1").exit_code == 0
    first = seeds_in(tmp_path)[0]
    before = weights_in(first)
    result = shoal(*command, "2")
    assert result.exit_code == 0, result.output
    assert "is finished" in result.output
    runs = seeds_in(tmp_path)
    assert sorted(runs) == [0, 1]
    assert runs[0] == first
    assert weights_in(first) == before


def test_a_dry_run_tells_of_seeds_and_no_seeds_are_refused() -> None:
    result = shoal("train", "CartPole-v1", "--seeds", "5", "--dry-run")
    assert "# Each is trained with 5 seeds" in result.output
    assert load_text(result.output, "output").tree
    assert shoal("train", "CartPole-v1", "--seeds", "0").exit_code == 2


def seeds_in(folder: Path) -> dict[int, Path]:
    """The runs in a folder of results by their seeds, of which no two are the same."""
    found = runs_of(folder / "CartPole-v1")
    by_seed = {(stored_tree(run) or {})["config"]["seed"]: run for run in found}
    assert len(by_seed) == len(found)
    return by_seed


def weights_in(run: Path) -> bytes:
    return bytes(read_checkpoint(run).state.part("policy").arrays["params"].tobytes())
