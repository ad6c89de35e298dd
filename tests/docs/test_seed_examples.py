"""examples/theta, eagle and learning-ray: what their READMEs say is so, and their commands run on few steps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.cli.evaluate import table
from shoal.cli.main import main
from shoal.config.experiment import experiments_from_file
from shoal.envs.importing import UserCode

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
THETA, EAGLE, NOTES = (EXAMPLES / name for name in ("theta", "eagle", "learning-ray"))
KEPT = json.loads((ROOT / "benchmarks" / "results" / "seed_examples.json").read_text())["results"]
STAND_IN = '#!/bin/bash\necho {name} "$@"\n'


def loaded(folder: Path, module: str) -> Any:
    return UserCode.at(folder).load_module(module)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, and a home."""
    copy = Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")))
    monkeypatch.setenv("HOME", str(tmp_path))
    return copy


def shoal(line: str, more: str = "") -> str:
    done = CliRunner().invoke(main, [*shlex.split(f"{line} {more}")[1:]], prog_name="shoal")
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
    return done.output


def lines_of(folder: Path) -> list[str]:
    """What the README of a folder types: the column `here`, and indented lines."""
    text = (folder / "README.md").read_text()
    rows = [
        row.strip("|").split(" | ")[1] for row in text.splitlines() if row.startswith("| ") and row.count(" | ") == 1
    ]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row)] + re.findall(
        r"^ {4}(\S.*)$", text, re.MULTILINE
    )


def test_the_optimum_of_the_ratio_is_the_smallest_of_all_choices() -> None:
    env_module, module = loaded(THETA, "ratio_env"), loaded(THETA, "optimum")
    square, choices = module.optimum()
    numbers = np.arange(12, 61, dtype=float)
    a, b, c, d = np.meshgrid(numbers, numbers, numbers, numbers, indexing="ij", sparse=True)
    everything = (env_module.SCALAR - b * c / (a * d)) ** 2
    assert everything.size == 49**4
    assert square == everything.min()
    assert sorted(choices) == sorted(tuple(where + 12) for where in np.argwhere(everything == everything.min()))
    env = env_module.RatioEnv({})
    env.reset()
    for number in choices[0]:
        *_, reward, terminated, _, info = env.step(number - 12)
    assert (reward, terminated) == (-square, True)
    readme = (THETA / "README.md").read_text()
    assert f"{49**4:,}" in readme
    assert f"{-square:.4g}" in readme
    assert "{1} · {2} / ({0} · {3})".format(*choices[0]) in readme
    (experiment,) = experiments_from_file(THETA / "ratio.yml")
    second_best = -np.log10(np.partition(everything.ravel(), 4)[4])
    assert second_best < experiment.stop["custom_metrics/digits_max"] < info["digits"]


def test_the_script_of_the_optimum_prints_it() -> None:
    (line,) = [line for line in lines_of(THETA) if line.startswith("python optimum")]
    done = subprocess.run(
        [sys.executable, *shlex.split(line)[1:]], cwd=THETA, capture_output=True, text=True, check=True
    )
    assert f"choices: {49**4:,}\n" in done.stdout
    assert "16 * 19 / (49 * 43)" in done.stdout


def test_a_wrong_reward_of_the_ratio_is_refused() -> None:
    with pytest.raises(ValueError, match="reward is square or digits, not 'cube'"):
        loaded(THETA, "ratio_env").RatioEnv({"reward": "cube"})


@pytest.mark.slow
def test_the_optimum_of_the_ratio_is_reached(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk / "theta")
    assert "Finished: custom_metrics/digits_max 11.57 >= 11.57" in shoal("shoal train -f ratio.yml", "--quiet --seed 1")


@pytest.mark.parametrize("name", ["theta", "polaris"])
def test_batch_scripts_of_theta_launch_the_script(name: str, desk: Path) -> None:
    (desk / "programs").mkdir()
    for program in ("aprun", "mpiexec"):
        (desk / "programs" / program).write_text(STAND_IN.format(name=program))
        (desk / "programs" / program).chmod(0o755)
    (desk / "nodes").write_text("n1\nn1\nn2\nn2\n")
    variables = {"COBALT_JOBSIZE": "2", "PBS_NODEFILE": str(desk / "nodes"), "PBS_O_WORKDIR": str(desk / "theta")}
    path = f"{desk / 'programs'}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", f"{name}.sh"],
        cwd=desk / "theta",
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {
        "theta": "aprun -n 32 -N 16 shoal launch --num-ranks 32 -- python train_ppo.py --ray-address {address}\n",
        "polaris": "mpiexec -n 2 --ppn 1 shoal launch -- python train_ppo.py --ray-address {address}\n",
    }
    assert done.stdout == wanted[name]
    assert name != "theta" or done.stdout.strip() in lines_of(THETA)


@pytest.mark.parametrize("folder", [THETA, EAGLE])
def test_submitting_lines_write_scripts(folder: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk / folder.name)
    lines = [line for line in lines_of(folder) if line.startswith("shoal submit")]
    assert lines
    for line in lines:
        before, _, after = line.partition(" -- ")
        script = shoal(f"{before} --dry-run -- {after}")
        assert script.startswith("#!/bin/bash")
        assert "Warning" not in script
        assert after in script


def test_the_gpu_script_asks_for_what_it_uses() -> None:
    script = (EAGLE / "gpu_trainer.sh").read_text()
    subprocess.run(["bash", "-n", str(EAGLE / "gpu_trainer.sh")], check=True)
    assert "#SBATCH --gres=gpu:1\n" in script
    assert 'simple_trainer.py --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus 1' in script


def test_the_craft_moves_as_the_differential_equations_say() -> None:
    module = loaded(NOTES, "custom_env")
    n, t, parts = module.MEAN_MOTION, module.STEP_S, 20_000
    rates = np.zeros((6, 6))
    rates[:3, 3:] = np.eye(3)
    rates[3, 0], rates[3, 4], rates[4, 3], rates[5, 2] = 3 * n**2, 2 * n, -2 * n, -(n**2)
    stepped = np.linalg.matrix_power(np.eye(6) + rates * t / parts, parts)
    np.testing.assert_allclose(module.transition(n, t), stepped, atol=1e-5)


def test_masks_keep_the_speed_limit_and_the_fuel() -> None:
    module = loaded(NOTES, "custom_env")
    env = module.Rendezvous3DOF({"fuel": 1.0, "distance": 100})
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=0)
    for _ in range(100):
        action = int(rng.choice(np.flatnonzero(seen["action_mask"])))
        before = env.state[3:] + (module.pulse(action) if action else 0)
        seen, *_ = env.step(action)
        assert np.abs(before).max() <= module.MAX_SPEED + 1e-9
        assert env.delta_v <= env.fuel
    assert seen["action_mask"].tolist() == [1, 0, 0, 0, 0, 0, 0]  # no fuel is left
    started, _ = env.reset(seed=1, options={"x0": 3.0, "vz0": -0.25})
    np.testing.assert_allclose(started["observations"][[0, 5, 6]], [3 / 50, -0.5, 1.0], rtol=1e-6)


@pytest.mark.slow
def test_the_rendezvous_trains_and_is_evaluated_case_by_case(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = desk / "learning-ray"
    monkeypatch.chdir(notes)
    train, cases, evaluate, look, tune = [line for line in lines_of(NOTES) if line.startswith(("shoal", "python"))][-5:]
    shoal(
        train,
        "--quiet --stop timesteps_total=8192 --set config.evaluation_interval=1 --set config.evaluation_duration=2",
    )
    words = shlex.split(cases)
    made = subprocess.run([sys.executable, *words[1:3]], cwd=notes, capture_output=True, text=True, check=True)
    assert words[3:] == [">", "cases.csv"]
    assert made.stdout == (notes / "cases.csv").read_text()
    (notes / "cases.csv").write_text("".join(made.stdout.splitlines(keepends=True)[:6]))
    printed = shoal(evaluate)
    assert "5 cases, 0 failed" in printed
    assert re.search(r"^  docked .* to ", printed, re.MULTILINE)
    told = subprocess.run(
        [sys.executable, *shlex.split(look)[1:]], cwd=notes, capture_output=True, text=True, check=True
    )
    assert len(re.findall(r"^episode \d+: +[\d.]+ m -> ", told.stdout, re.MULTILINE)) == 5
    assert "reward_weights: 12 trials" in shoal(tune, "--dry-run")


def test_the_figures_are_those_that_are_kept() -> None:
    theta, notes = (THETA / "README.md").read_text(), (NOTES / "README.md").read_text()
    found = KEPT["ratio"]["steps"]
    assert f"after {found['low']:,} to {found['high']:,} steps" in theta
    assert all(run["digits"] >= 11.568 for run in KEPT["ratio"]["found"])
    squares = KEPT["ratio"]["square_reward_mean"]
    assert f"between {min(squares):.0e} and {max(squares):.0e}".replace("e-0", "e-") in theta
    for arm in ("curriculum", "100 m alone"):
        assert f"{KEPT['rendezvous'][arm]['steps']['median']:,}" in notes


def test_the_table_of_cases_is_the_one_that_is_kept() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "seed_examples-cases.json").read_text())
    assert f"`--seed {found['settings']['seed']}`" in (NOTES / "README.md").read_text()
    measures = found["results"]["measures"]
    printed = f"  {found['results']['count']} cases, {found['results']['failed']} failed\n{table(measures)}\n"
    assert f"```text\n{printed}```" in (NOTES / "README.md").read_text()
    assert measures["docked"]["mean"] == 1
