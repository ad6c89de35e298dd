"""Every example runs as its README says, in a folder and a home of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOAL = [sys.executable, "-m", "shoal"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")))


def run(command: list[str], folder: Path, timeout: float = 240) -> str:
    """What the command prints; it must end well."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_readme_names_every_example() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yml")}
    assert set(re.findall(r"\]\(([\w.]+)\)", readme)) == files


def test_custom_yml_trains_and_its_checkpoint_is_evaluated(folder: Path) -> None:
    run([*SHOAL, "train", "-f", "custom.yml"], folder)
    (run_folder,) = (folder.parent / "home" / "shoal_results" / "custom_env").glob("DQN_custom_env.CustomEnv_*")
    checkpoints = sorted(path.name for path in run_folder.glob("checkpoint_*"))
    assert checkpoints == [f"checkpoint_{n:06}" for n in range(1, 11)]
    names = ["--run", "DQN", "--env", "custom_env.CustomEnv", "--steps", "200"]
    run([*SHOAL, "evaluate", str(run_folder / checkpoints[-1]), *names], folder)
    (evaluation,) = run_folder.glob("evaluation_*.json")
    assert json.loads(evaluation.read_text())["timesteps_this_iter"] == 200


def test_ratio_env_trains_by_its_file_name(folder: Path) -> None:
    run([*SHOAL, "train", "ratio_env.py:RatioEnv", "--stop", "timesteps_total=20000"], folder)


@pytest.mark.slow
def test_train_ppo_leaves_a_checkpoint(folder: Path) -> None:
    pytest.importorskip("torch")
    printed = run([sys.executable, "train_ppo.py"], folder)
    checkpoint = (folder / "rl_checkpoint").read_text()
    assert f"Final checkpoint saved at {checkpoint}" in printed
    assert (Path(checkpoint) / "manifest.json").exists()
    assert "training_iteration: 10" in printed


def test_curriculum_rises_by_one_every_thousand_steps(folder: Path) -> None:
    printed = run([sys.executable, "curriculum.py"], folder)
    assert [int(n) for n in re.findall(r"Current difficulty: (\d+)", printed)] == [1, 2, 3, 4]
    assert re.search(r"^5\d\d\d steps, task 4 return", printed, re.MULTILINE)


@pytest.mark.slow
def test_the_maze_is_learned_in_stages(folder: Path) -> None:
    run([*SHOAL, "train", "-f", "maze.yml"], folder)
    (results,) = (folder.parent / "home" / "shoal_results" / "maze").glob("*/result.json")
    last = json.loads(results.read_text().splitlines()[-1])
    assert last["stages_passed"] == 14


def test_learning_ray_goes_through_the_whole_api(folder: Path) -> None:
    printed = run([sys.executable, "learning_ray.py"], folder)
    assert "training_iteration: 10" in printed
    assert re.search(r"\{'obs1': [012], 'obs2': [012]\}", printed)
    assert "4 workers have" in printed


@pytest.mark.slow
def test_parametric_actions_are_learned_by_both_models(folder: Path) -> None:
    pytest.importorskip("torch")
    printed = run([sys.executable, "parametric_actions.py"], folder)
    rewards = re.findall(r"^(built-in|custom) model: (\S+) -> (\S+) per day$", printed, re.MULTILINE)
    assert [name for name, _, _ in rewards] == ["built-in", "custom"]
    assert all(float(last) > float(first) + 3 for _, first, last in rewards)


@pytest.mark.slow
def test_memory_yml_learns_to_repeat(folder: Path) -> None:
    pytest.importorskip("torch")
    run([*SHOAL, "train", "-f", "memory.yml"], folder)
    (run_folder,) = (folder.parent / "home" / "shoal_results" / "repeat_after_me").iterdir()
    last = json.loads((run_folder / "result.json").read_text().splitlines()[-1])
    assert last["episode_reward_mean"] >= 50


@pytest.mark.slow
def test_sweep_yml_searches_and_trains_the_best_for_longer(folder: Path) -> None:
    printed = run([*SHOAL, "tune", "-f", "sweep.yml", "--num-samples", "2", "--stop", "timesteps_total=6000"], folder)
    assert "Finished: 2 trials have ended" in printed
    (best,) = (folder.parent / "home" / "shoal_results" / "cartpole_sweep").glob("sweep_*/best.yml")
    run([*SHOAL, "train", "-f", str(best), "--stop", "timesteps_total=4096"], folder)


@pytest.mark.slow
def test_training_function_tries_every_combination(folder: Path) -> None:
    printed = run([sys.executable, "training_function.py"], folder)
    assert printed.splitlines()[0] == "{'x': 0, 'y': 0}"
    (trials,) = (folder.parent / "home" / "shoal_results" / "training_function").glob("sweep_*/trials")
    assert len(list(trials.iterdir())) == 25
