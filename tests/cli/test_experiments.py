"""Files of experiments, environments next to them, and evaluation from anywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "learning-ray"


def test_evaluate_prints_a_table_and_writes_json(trained: tuple[Any, Any, Path], tmp_path: Path) -> None:
    desk, _, run = trained
    before = set(run.glob("evaluation_*.json"))
    done = desk.shoal("evaluate", str(run), "--episodes", "4", "--seed", "9", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = set(run.glob("evaluation_*.json")) - before
    report = json.loads(file.read_text())
    head, *table, last = done.stdout.splitlines()
    shown_run = f"~/shoal_results/CartPole-v1/{run.name}"
    assert head == f"PPO CartPole-v1  {shown_run}/checkpoint_000003"
    assert last == f"written to {shown_run}/{file.name}"
    assert table[0] == f"  4 episodes, {report['timesteps_this_iter']} steps"
    shown = {line.split()[0]: line.split()[1:] for line in table[2:]}
    assert float(shown["episode_reward"][0]) == pytest.approx(report["episode_reward_mean"], abs=0.01)
    assert float(shown["episode_reward"][-1]) == max(report["episode_rewards"])
    assert report["checkpoint"] == f"{run}/checkpoint_000003"
    assert len(report["episode_rewards"]) == 4


def test_several_experiments_in_one_file(desk: Any) -> None:
    (desk.work / "two.yml").write_text(
        "poles:\n"
        "  env: CartPole-v1\n"
        "  stop: {training_iteration: 2}\n"
        "  config: &small {train_batch_size: 256, num_envs_per_worker: 4}\n"
        "swings:\n"
        "  env: Acrobot-v1\n"
        "  stop: {training_iteration: 1}\n"
        "  config: *small\n"
    )
    done = desk.shoal("train", "-f", "two.yml")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(run.parent.name, run.name.split("_")[1]) for run in desk.runs()] == [
        ("poles", "CartPole-v1"),
        ("swings", "Acrobot-v1"),
    ]
    assert [line.split("_")[-1] for line in done.stdout.splitlines() if line.startswith("  saved")] == [
        "000002",
        "000001",
    ]
    again = desk.shoal("train", "-f", "two.yml")
    assert again.stdout.count("is finished") == 2
    assert len(desk.runs()) == 2


def test_an_environment_next_to_its_file_is_found_from_anywhere(desk: Any, tmp_path: Path) -> None:
    files, elsewhere = tmp_path / "files", tmp_path / "elsewhere"
    files.mkdir()
    elsewhere.mkdir()
    for name in ("custom.yml", "custom_env.py"):
        shutil.copy(EXAMPLES / name, files)
    # Another module of that name in the working folder must not be taken for it.
    (desk.work / "custom_env.py").write_text("raise RuntimeError('the wrong one')\n")
    done = desk.shoal("train", "-f", str(files / "custom.yml"), "--stop", "timesteps_total=2000")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    for arguments in (["evaluate", "--steps", "50"], ["resume", "--stop", "timesteps_total=4000"]):
        later = desk.shoal(arguments[0], str(run), *arguments[1:], cwd=elsewhere)
        assert later.returncode == 0, later.stderr
    assert list(elsewhere.iterdir()) == []


def test_a_run_is_named_in_any_way_a_person_would(trained: tuple[Any, Any, Path]) -> None:
    desk, _, run = trained
    names = [run.parent, run / "checkpoint_000003", run / "checkpoint_000003" / "checkpoint-3"]
    for path in (*(str(name) for name in names), f"~/shoal_results/CartPole-v1/{run.name}"):
        done = desk.shoal("evaluate", path, "--steps", "5")
        assert done.returncode == 0, done.stderr
        assert f"~/shoal_results/CartPole-v1/{run.name}/checkpoint_000003" in done.stdout
