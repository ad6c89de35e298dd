"""What shoal is distributed by says the same as pyproject.toml, and the command is the same by whatever name."""

from __future__ import annotations

import importlib.util
import json
import os
import re
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


SECTIONS = {"files", "post", "environment", "runscript", "test", "labels", "help"}
"""Those that the recipe has of Apptainer's; one that is spelt otherwise would be ignored."""


def stages_of_the_image() -> dict[str, dict[str, str]]:
    """The sections of each stage, by its name; what stands before them is the section ``."""
    recipe = (ROOT / "examples/containers/shoal.def").read_text()
    stages: dict[str, dict[str, str]] = {}
    for text in re.split(r"^(?=Bootstrap:)", recipe, flags=re.MULTILINE)[1:]:
        head, *sections = re.split(r"^%", text, flags=re.MULTILINE)
        fields = dict(line.split(": ", 1) for line in head.split("\n") if line)
        assert fields.keys() == {"Bootstrap", "From", "Stage"}
        told = [section.partition("\n") for section in sections]
        names = [first for first, _, _ in told]
        assert len(set(names)) == len(names)
        stages[fields["Stage"]] = {"": head, **{first: body for first, _, body in told}}
    return stages


def test_the_recipe_of_the_image_has_two_stages_and_known_sections() -> None:
    stages = stages_of_the_image()
    assert list(stages) == ["build", "run"]
    for name, sections in stages.items():
        earlier = list(stages)[: list(stages).index(name)]
        for section in filter(None, sections):
            word, *arguments = section.split()
            assert word in SECTIONS
            if arguments:
                assert word == "files"
                assert arguments[0] == "from"
                assert arguments[1] in earlier, "a stage takes files of one before it"
    assert "files from build" in stages["run"]
    built, taken = stages["build"]["post"], stages["run"]["files from build"].split()
    assert f"python -m venv {taken[0]}\n" in built
    assert taken == ["/opt/shoal", "/opt/shoal"], "a virtual environment stays where it was made"
    assert stages["build"][""].split("From: ")[1].split()[0] == stages["run"][""].split("From: ")[1].split()[0]
    assert "export PATH=/opt/shoal/bin:$PATH" in stages["run"]["environment"]


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_the_scripts_of_the_image_are_shell_and_their_commands_of_shoal_are_right(section: str) -> None:
    from click.testing import CliRunner

    from shoal.cli.main import main

    scripts = [sections[section] for sections in stages_of_the_image().values() if section in sections]
    assert scripts
    for script in scripts:
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for line in re.findall(r"^ *(?:exec )?shoal (\w+.*)$", script, re.MULTILINE):
            words = shlex.split(line)
            shown = CliRunner().invoke(main, [words[0], "--help"])
            assert shown.exit_code == 0, line
            assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", shown.output))


RENDER = """
import json, sys
from rattler_build import Stage0Recipe

[rendered] = Stage0Recipe.from_file(sys.argv[1]).render()
print(json.dumps(rendered.recipe.to_dict()))
"""


@pytest.mark.slow
def test_rattler_build_renders_the_conda_recipe(project: dict[str, Any], tmp_path: Path) -> None:
    """As its own library does, which needs no channel for it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin/python"
    got = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "py-rattler-build==0.73.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"py-rattler-build cannot be installed here: {got.stderr[-300:]}")
    recipe = ROOT / "packaging/conda/recipe.yaml"
    done = subprocess.run([python, "-c", RENDER, recipe], capture_output=True, text=True, check=True)
    rendered = json.loads(done.stdout)
    least = project["project"]["requires-python"].removeprefix(">=")
    assert (rendered["package"]["name"], rendered["package"]["version"]) == (DISTRIBUTION, __version__)
    assert rendered["build"]["noarch"] == "python"
    assert rendered["requirements"]["host"][0] == f"python {least}.*"
    assert rendered["requirements"]["run"][1] == f"python >={least}"
    assert "${{" not in done.stdout, "all is filled in"
    assert rendered["about"]["license"] == project["project"]["license"]


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
