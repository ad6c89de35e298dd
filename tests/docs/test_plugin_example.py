"""`examples/plugin` is installed and used as its README says, and a broken one costs one line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import Page

ROOT = Path(__file__).parents[2]
KINDS = ("algorithm", "scheduler", "logger", "env format")
BROKEN = """[project]
name = "shoal-broken"
version = "2"
[project.entry-points."shoal.algorithms"]
Broken = "shoal_broken:Config"
PPO = "shoal_broken:Config"
[project.entry-points."shoal.env_formats"]
bad = "shoal_broken_too:make"
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[tool.setuptools]
py-modules = ["shoal_broken"]
"""


def run(words: list[str], places: list[Path], cwd: Path, code: int = 0) -> str:
    """What a command prints, with these folders first among those that Python imports from."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def installed(source: Path, target: Path) -> None:
    """Install a package by pip and without a network."""
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(target), "."], [], source)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed in it, from a copy: building leaves files behind."""
    pytest.importorskip("setuptools")
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    subprocess.run(["cp", "-r", str(ROOT / "examples" / "plugin"), str(source)], check=True)
    installed(source, target)
    return target


def shoal(*words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", *words]


@pytest.mark.slow
def test_the_example_is_listed_and_trains(package: Path, tmp_path: Path) -> None:
    listed = run(shoal("plugins"), [package], tmp_path).splitlines()
    assert [line.rsplit("  ", 1)[1] for line in listed] == ["shoal-moon 0.1"] * 4
    assert [next(kind for kind in KINDS if line.startswith(kind)) for line in listed] == [*KINDS]
    for line in run(shoal("plugins", "--check"), [package], tmp_path).splitlines():
        assert line.endswith("  ok")
    pages = ("docs/plugins.md", "examples/plugin/README.md")
    (line,) = {line for page in pages for line in Page(page).typed() if line.startswith("shoal train")}
    short = ["--stop", "training_iteration=1", "--results-dir", str(tmp_path)]
    assert "Finished: training_iteration" in run([*shoal(*shlex.split(line)[1:]), *short], [package], tmp_path)
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "examples/plugin/tests")]
    assert "1 passed" in run(test, [package], tmp_path)
    script = run(
        shoal("submit", "--scheduler", "moonshot", "--nodes", "2", "--walltime", "1h", "--dry-run", "--", "true"),
        [package],
        tmp_path,
    )
    assert "#MOON --crew 2" in script
    assert "there is no 'venus'; use moon, mars, earth" in run(
        shoal("train", "moon:venus"), [package], tmp_path, code=2
    )
    assert "Type moon:NAME" in run(shoal("train", "moon:"), [package], tmp_path, code=2)


@pytest.mark.slow
def test_a_broken_one_is_one_line_and_harms_nobody(package: Path, tmp_path: Path) -> None:
    source, broken = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (source / "pyproject.toml").write_text(BROKEN)
    (source / "shoal_broken.py").write_text("raise RuntimeError('no luck\\ntoday')\n")
    installed(source, broken)
    places = [package, broken]
    listed = run(shoal("plugins"), places, tmp_path)
    assert "no luck" not in listed  # nothing is imported
    assert "not used, shoal has one of that name" in listed
    checked = run(shoal("plugins", "--check"), places, tmp_path, code=1).splitlines()
    assert len(checked) == 7
    (line,) = [line for line in checked if " Broken " in line]
    assert "BROKEN" in line
    assert "no luck today" in line
    assert sum(line.endswith("  ok") for line in checked) == 4
    assert "no luck" in run(shoal("train", "CartPole-v1", "--run", "Broken"), places, tmp_path, code=2)
    assert "shoal_broken_too" in run(shoal("train", "bad:one"), places, tmp_path, code=2)


def test_without_any_it_says_where_to_begin(tmp_path: Path) -> None:
    listed = run(shoal("plugins"), [], tmp_path)
    assert "examples/plugin" in listed or "shoal" in listed
