"""What shoal is distributed by says the same as pyproject.toml, and the command is the same by whatever name."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr[-300:]}")
    [built] = folder.glob("*.whl")
    return Path(built)


INSTALLS = {
    "pipx": [
        "install",
        "--python",
        sys.executable,
        "--pip-args",
        shlex.join(["--constraint", str(ROOT / "constraints.txt")]),
    ],
    "uv": ["tool", "install", "--python", sys.executable, "--constraints", str(ROOT / "constraints.txt")],
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", INSTALLS)
def test_the_wheel_with_an_extra_is_installed_as_a_command(tool: str, wheel: Path, tmp_path: Path) -> None:
    """By pipx and by uv, as the page on installing says; with what the extra brings, and no more."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tool"], check=True)
    got = subprocess.run(
        [tmp_path / "tool/bin/python", "-m", "pip", "install", "--quiet", tool],
        capture_output=True,
        text=True,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"{tool} cannot be installed here: {got.stderr[-300:]}")
    places = {name: str(tmp_path / place) for name, place in PLACES.items()}
    environment = {**os.environ, **places}
    words = [*INSTALLS[tool], f"{wheel}[serve]"]
    done = subprocess.run(
        [tmp_path / "tool/bin" / tool, *words], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode and any(word in done.stderr for word in ("Failed to fetch", "error sending request")):
        pytest.skip(f"{tool} reaches no index here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    shoal = tmp_path / "bin/shoal"
    version = subprocess.run([shoal, "--version"], capture_output=True, text=True, check=True).stdout
    assert __version__ in version
    refused = subprocess.run([shoal, "serve", "no-such-run"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no-such-run" in refused.stderr, "and not what is missing"
    shown = subprocess.run(
        [shoal, "export", "--format", "torchscript", "x"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 2
    python = Path(shoal.resolve()).with_name("python")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 1
    if tool == "pipx":  # which puts manual pages where man looks
        assert (tmp_path / "man/man1/shoal.1").read_bytes() == (ROOT / "src/man/shoal.1").read_bytes()


PLACES = {
    "PIPX_HOME": "home",
    "PIPX_BIN_DIR": "bin",
    "PIPX_MAN_DIR": "man",
    "UV_TOOL_DIR": "home",
    "UV_TOOL_BIN_DIR": "bin",
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apptainer") is None, reason="there is no apptainer")
def test_the_image_is_built_and_runs(tmp_path: Path) -> None:
    image = tmp_path / "shoal.sif"
    subprocess.run(["apptainer", "build", image, "examples/containers/shoal.def"], cwd=ROOT, check=True, timeout=1500)
    subprocess.run(["apptainer", "test", image], check=True, timeout=300)
    told = subprocess.run(["apptainer", "run", image, "--version"], capture_output=True, text=True, check=True)
    assert __version__ in told.stdout


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
