"""What shoal is distributed by says the same as pyproject.toml, and the command is the same by whatever name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from shoal.version import DISTRIBUTION, __version__

tomllib = pytest.importorskip("tomllib", reason="is part of Python from 3.11 on")
ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"ray[tune]": "ray-tune"}
"""What conda-forge calls a package otherwise."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_conda_recipe_agrees_with_the_project(project: dict[str, Any]) -> None:
    recipe = YAML(typ="safe").load(ROOT / "packaging/conda/recipe.yaml")
    about = project["project"]
    least = about["requires-python"].removeprefix(">=")
    assert recipe["package"]["name"] == about["name"] == DISTRIBUTION
    assert recipe["context"] == {"version": __version__, "python_min": least}
    assert recipe["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in about["scripts"].items()]
    assert [_by_conda(each) for each in project["build-system"]["requires"]] == recipe["requirements"]["host"][2:]
    wanted = ["__linux", "python >=${{ python_min }}", *map(_by_conda, about["dependencies"])]
    assert recipe["requirements"]["run"] == wanted
    assert recipe["about"]["summary"] == about["description"]
    assert recipe["about"]["license"] == about["license"]


def _by_conda(requirement: str) -> str:
    name, bound, version = requirement.partition(">=")
    return f"{CONDA_NAMES.get(name, name)} {bound}{version}"


def test_an_image_is_built_from_all_that_the_wheel_is_made_of(project: dict[str, Any]) -> None:
    recipe = (ROOT / "examples/containers/shoal.def").read_text()
    copied = [line.split()[0] for line in recipe.partition("%files")[2].partition("%post")[0].splitlines() if line]
    hatch = project["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    about = project["project"]
    needed = [about["readme"], *about["license-files"], hatch["version"]["path"], *wheel["packages"]]
    for path in (*needed, *wheel["shared-data"]):
        assert (ROOT / path).exists(), path
        assert path.split("/")[0] in copied, path


@pytest.mark.parametrize("words", [["--version"], ["train", "--help"], ["evaluate", "no-such-run"]])
def test_python_m_shoal_is_shoal(words: list[str]) -> None:
    command = Path(sys.executable).with_name("shoal")
    told = []
    for program in ([str(command)], [sys.executable, "-m", "shoal"]):
        done = subprocess.run([*program, *words], capture_output=True, text=True, check=False, timeout=120)
        told.append((done.returncode, done.stdout, done.stderr))
    assert told[0] == told[1]
    assert "Traceback" not in told[0][2]


def test_versions_that_disagree_are_told_by_their_numpy() -> None:
    place = ROOT / "packaging/try_versions.py"
    spec = importlib.util.spec_from_file_location("try_versions", place)
    assert spec is not None
    assert spec.loader is not None
    versions = importlib.util.module_from_spec(spec)
    sys.modules["try_versions"] = versions
    spec.loader.exec_module(versions)
    rows = [versions.Tried(python, numpy, {}, link) for python, numpy, link in ROWS]
    assert versions.disagreeing(rows) == ["2.4.6"]
    here = ".".join(map(str, sys.version_info[:2]))
    assert versions.interpreter("3.0") is None
    assert not versions.Tried(here, "2", {"install": "pinned"}).has_failed


ROWS = [
    ("3.11.7", "2.4.6", "a"),
    ("3.12.1", "2.4.6", "b"),
    ("3.10.1", "2.2.6", "c"),
    ("3.11.7", "1.26.4", "c"),
    ("3.14", "2", ""),
]
