"""The recipe for an algorithm is carried out word for word: as an installed package, and as a row of shoal's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.config.algorithms import BUILT_IN, rllib_algorithms
from shoal.config.settings import AlgorithmConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
FILES = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHORT = ["--stop", "timesteps_total=1500"]
SAME_WEIGHTS = """
import numpy as np, shoal
weights = []
for num_workers in (0, 2):
    layout = {"num_workers": num_workers, "num_envs_per_worker": 8 // max(num_workers, 1)}
    with shoal.A2C(env="CartPole-v1", config=layout) as trainer:
        for _ in range(3):
            result = trainer.train()
        weights.append(trainer.get_policy().network.params.copy())
np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-6)
reported = {f"learner/{name}" for name in result["learner"]}
from shoal.config.result_names import result_names
assert reported <= set(result_names()), reported
"""


def run(words: list[str], places: list[Path], cwd: Path) -> str:
    """What a command prints, with these folders first among those that Python imports from."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trained(places: list[Path], folder: Path) -> dict:
    """The last result of `shoal train CartPole-v1 --run A2C`, cut short."""
    typed = next(line for line in PAGE.splitlines() if line.startswith("shoal train "))
    command = [sys.executable, "-m", *typed.split(), *SHORT, "--results-dir", str(folder)]
    run(command, places, folder)
    (lines,) = folder.glob("*/*/result.json")
    return json.loads(lines.read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder with the page's package installed in it, by pip and without a network."""
    pytest.importorskip("setuptools")
    source, installed = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "shoal_a2c").mkdir()
    for name, text in FILES:
        (source / name).write_text(text)
    assert "pip install .\n" in PAGE
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(installed), "."], [], source)
    return installed


@pytest.mark.slow
def test_an_installed_algorithm_is_listed_shown_and_trains(package: Path, tmp_path: Path) -> None:
    listed = run([sys.executable, "-m", "shoal", "algorithms"], [package], tmp_path).splitlines()
    assert [line.split()[0] for line in listed] == [*BUILT_IN, "A2C", *rllib_algorithms()]
    assert listed[len(BUILT_IN)].split(maxsplit=1)[1] == "shoal-a2c 0.1  Advantage actor-critic for shoal"
    shown = run([sys.executable, "-m", "shoal", "config", "show", "--run", "A2C"], [package], tmp_path)
    assert "entropy_coeff" in shown
    assert "Weight of the entropy bonus." in shown
    last = trained([package], tmp_path)
    assert last["timesteps_total"] >= 1500
    assert last["learner"]["vf_loss"] > 0


@pytest.mark.slow
def test_two_workers_give_the_weights_of_none(package: Path, tmp_path: Path) -> None:
    run([sys.executable, "-c", SAME_WEIGHTS], [package], tmp_path)


@pytest.mark.slow
def test_a_row_makes_it_one_of_shoals_own(tmp_path: Path) -> None:
    """In a copy of the source: two files, one row, and nothing else."""
    shutil.copytree(ROOT / "src" / "shoal", tmp_path / "src" / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    home = tmp_path / "src" / "shoal"
    modules = {"shoal_a2c.config": "shoal.config.a2c", "shoal_a2c.learner": "shoal.algorithms.a2c"}
    for name, text in FILES:
        module = modules.get(name.removesuffix(".py").replace("/", "."))
        if module is not None:
            for old, new in modules.items():
                text = text.replace(old, new)
            (tmp_path / "src" / f"{module.replace('.', '/')}.py").write_text(text)
    (row,) = re.findall(r'^ +"A2C": "shoal.config.a2c:A2CConfig",\n', PAGE, re.MULTILINE)
    table = home / "config" / "algorithms.py"
    last = f'    "DQN": "{BUILT_IN["DQN"]}",\n'
    assert last in table.read_text()
    table.write_text(table.read_text().replace(last, last + row))
    assert trained([tmp_path / "src"], tmp_path)["learner"]["vf_loss"] > 0
    listed = run([sys.executable, "-m", "shoal", "algorithms"], [tmp_path / "src"], tmp_path)
    assert re.search(rf"^A2C +shoal {re.escape(shoal.__version__)}  Advantage actor-critic$", listed, re.MULTILINE)


def test_the_table_names_every_attribute() -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert told == AlgorithmConfig.__class_vars__ - {"model_config"}
    assert all(f"`{name}`" in PAGE for name in (*AlgorithmConfig.results, *AlgorithmConfig.mutable))
