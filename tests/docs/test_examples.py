"""Every example runs as its README says, in a folder and a home of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOAL = [sys.executable, "-m", "shoal"]
SEEDS = ("theta", "eagle", "learning-ray", "trpo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")))


def run(command: list[str], folder: Path, timeout: float = 240) -> str:
    """What the command prints; it must end well."""
    home = next(parent for parent in (folder, *folder.parents) if parent.name == "examples").parent / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", [".", *SEEDS])
def test_readmes_name_every_file(name: str) -> None:
    readme = (EXAMPLES / name / "README.md").read_text()
    files = {path.name for path in (EXAMPLES / name).iterdir() if path.suffix not in (".md", "")}
    linked = set(re.findall(r"\]\(([\w.]+)\)", readme))
    told = set(re.findall(r"[\w.]+\.(?:py|yml|csv|sh|ipynb)", readme))
    assert linked - {"README.md"} <= files
    assert files <= told
    if name == ".":
        assert {*re.findall(r"\]\(([\w-]+)/(?:README.md)?\)", readme)} == {
            path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"
        }


@pytest.mark.parametrize("name", SEEDS)
def test_readmes_show_the_command_of_the_seed_beside_ours(name: str) -> None:
    rows = (EXAMPLES / name / "README.md").read_text().partition("| there | here |\n|---|---|\n")[2].splitlines()
    pairs = [row.strip("|").split(" | ") for row in rows[: rows.index("")]]
    assert len(pairs) >= 6
    assert all(len(pair) == 2 and "`" in pair[1] for pair in pairs)


@pytest.mark.slow
def test_a_loop_of_ones_own_learns_and_takes_workers(folder: Path) -> None:
    pytest.importorskip("torch")
    said = run([sys.executable, "own_loop.py", "30"], folder)
    assert float(said.split(":")[1]) > 80
    assert "mean return" in run([sys.executable, "own_loop.py", "2", "2"], folder)


@pytest.mark.slow
def test_tianshou_learns_on_our_environments_and_takes_workers(folder: Path) -> None:
    if find_spec("tianshou") is None:
        pytest.skip("Tianshou is not installed here; make test-tianshou runs this in an environment of its own")
    said = run([sys.executable, "tianshou_ppo.py", "5"], folder, 600)
    assert float(said.rsplit(" ", 1)[1]) > 60
    assert "mean return" in run([sys.executable, "tianshou_ppo.py", "1", "2"], folder, 600)


def test_custom_yml_trains_and_its_checkpoint_is_evaluated(folder: Path) -> None:
    notes = folder / "learning-ray"
    run([*SHOAL, "train", "-f", "custom.yml"], notes)
    (run_folder,) = (folder.parent / "home" / "shoal_results" / "custom_env").glob("DQN_custom_env.CustomEnv_*")
    checkpoints = sorted(path.name for path in run_folder.glob("checkpoint_*"))
    assert checkpoints == [f"checkpoint_{n:06}" for n in range(1, 11)]
    names = ["--run", "DQN", "--env", "custom_env.CustomEnv", "--steps", "200"]
    run([*SHOAL, "evaluate", str(run_folder / checkpoints[-1]), *names], notes)
    (evaluation,) = run_folder.glob("evaluation_*.json")
    assert json.loads(evaluation.read_text())["timesteps_this_iter"] == 200


def test_the_airfoil_is_that_of_theory(folder: Path) -> None:
    pytest.importorskip("cma")
    run([*SHOAL, "train", "-f", "airfoil.yml"], folder)
    (results,) = (folder.parent / "home" / "shoal_results" / "airfoil").glob("*/result.json")
    last = json.loads(results.read_text().splitlines()[-1])
    assert (last["training_iteration"], last["timesteps_total"]) == (80, 1280)
    assert last["episode_reward_mean"] > -0.11
    assert last["custom_metrics"]["lift_mean"] == pytest.approx(0.6, abs=0.01)


def test_the_ratio_trains(folder: Path) -> None:
    run([*SHOAL, "train", "-f", "ratio.yml", "--stop", "timesteps_total=8192"], folder / "theta")


@pytest.mark.slow
def test_train_ppo_leaves_a_checkpoint(folder: Path) -> None:
    pytest.importorskip("torch")
    printed = run([sys.executable, "train_ppo.py"], folder / "theta")
    checkpoint = (folder / "theta" / "rl_checkpoint").read_text()
    assert f"Final checkpoint saved at {checkpoint}" in printed
    assert (Path(checkpoint) / "manifest.json").exists()
    assert "training_iteration: 10" in printed


def test_curriculum_rises_by_one_every_thousand_steps(folder: Path) -> None:
    printed = run([sys.executable, "curriculum.py"], folder / "learning-ray")
    assert [int(n) for n in re.findall(r"Current difficulty: (\d+)", printed)] == [1, 2, 3, 4]
    assert re.search(r"^5\d\d\d steps, task 4 return", printed, re.MULTILINE)


@pytest.mark.slow
def test_the_maze_is_learned_in_stages(folder: Path) -> None:
    run([*SHOAL, "train", "-f", "maze.yml"], folder)
    (results,) = (folder.parent / "home" / "shoal_results" / "maze").glob("*/result.json")
    last = json.loads(results.read_text().splitlines()[-1])
    assert last["stages_passed"] == 14


@pytest.mark.slow
def test_learning_ray_goes_through_the_whole_api(folder: Path) -> None:
    printed = run([sys.executable, "learning_ray.py"], folder / "learning-ray")
    assert "training_iteration: 10" in printed
    assert re.search(r"\{'obs1': [0-6], 'obs2': [0-6]\}", printed)
    assert "4 workers have" in printed


@pytest.mark.slow
def test_parametric_actions_are_learned_by_both_models(folder: Path) -> None:
    pytest.importorskip("torch")
    printed = run([sys.executable, "parametric_actions.py"], folder / "learning-ray")
    rewards = re.findall(r"^(built-in|custom) model: (\S+) -> (\S+) per day$", printed, re.MULTILINE)
    assert [name for name, _, _ in rewards] == ["built-in", "custom"]
    assert all(float(last) > float(first) + 3 for _, first, last in rewards)


@pytest.mark.slow
def test_memory_yml_learns_to_repeat(folder: Path) -> None:
    pytest.importorskip("torch")
    run([*SHOAL, "train", "-f", "memory.yml"], folder / "learning-ray")
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
    printed = run([sys.executable, "training_function.py"], folder / "learning-ray")
    assert printed.splitlines()[0] == "{'x': 0, 'y': 0}"
    (trials,) = (folder.parent / "home" / "shoal_results" / "training_function").glob("sweep_*/trials")
    assert len(list(trials.iterdir())) == 25
