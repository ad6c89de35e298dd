"""`shoal init`: a small project that can be trained at once, to put one's own simulation into."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from shoal.cli.options import Command
from shoal.cli.paths import short_path, typed_path
from shoal.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")
ENDING = ".template"  # so that no tool takes a template for code of shoal's own
SCHEMA = ".shoal/experiments.schema.json"  # which experiment.yml names, so that editors find it wherever the project is


@dataclass(frozen=True)
class Kind:
    """One kind of project: the folders of templates it is made of, and what its README says."""

    folders: tuple[str, ...]
    about: str
    files: tuple[tuple[str, str], ...]
    build: str = ""


KINDS = {
    "gym": Kind(
        ("gym",),
        "An environment in Python, a Gymnasium class: a room with a heater.",
        (("environment.py", "the environment"),),
    ),
    "lines": Kind(
        ("client", "lines"),
        "A program in C that speaks with shoal by lines of text: a mass on a spring that should come to rest.",
        (
            ("oscillator.c", "the simulator, which has the main loop"),
            ("shoal.h", "what speaks with shoal; other languages: docs/lines.md"),
            ("Makefile", "builds it"),
        ),
        "make",
    ),
    "case": Kind(
        ("case",),
        "A solver in C that reads and writes files, as OpenFOAM does: a flow that should come to rest.",
        (
            ("environment.py", "what writes the solver's inputs and reads its outputs"),
            ("case/", "the files that every episode begins with"),
            ("burgers.c", "the solver"),
            ("Makefile", "builds it"),
        ),
        "make",
    ),
    "fmu": Kind(
        ("fmu",),
        "A co-simulation FMU: a heater that should keep 20 degrees. It needs fmpy: pip install 'shoal-rl[fmi]'",
        (
            ("heater.c", "the model"),
            ("build_fmu.py", "makes heater.fmu of it; an FMU of your own needs neither"),
            ("Makefile", "builds it"),
        ),
        "make",
    ),
    "mpi": Kind(
        ("client", "mpi"),
        "An MPI program in C, of which every environment has two ranks: a rod that is heated at one end.",
        (
            ("rod.c", "the simulator; rank 0 speaks with shoal"),
            ("shoal.h", "what speaks with shoal"),
            ("Makefile", "builds it"),
        ),
        "make",
    ),
}


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=click.Choice(list(KINDS)), default="gym", show_default=True, help="What the simulation is."
)
def init(folder: Path, kind: str) -> None:
    """Make a small project in FOLDER that trains at once: environment, experiment file, test, job file and README.

    The kinds: gym, a Gymnasium class; lines, a program in any language that speaks by lines of text; case, a solver
    that reads and writes files; fmu, a co-simulation FMU; mpi, an MPI program.
    """
    made = make_project(folder, kind)
    place = short_path(folder.absolute())
    click.echo(f"{place}: {KINDS[kind].about}")
    for name in made:
        click.echo(f"  {name}")
    build = f" && {KINDS[kind].build}" if KINDS[kind].build else ""
    click.echo(f"Train it: cd {typed_path(folder.absolute())}{build} && shoal train experiment.yml")


def make_project(folder: Path, kind: str) -> list[str]:
    """Write the files of a project into a folder that is new or empty; returns their names."""
    from shoal.config.yaml_files import SCHEMA as SHIPPED

    contents = dict(project_files(KINDS[kind], _project_name(folder)))
    contents[SCHEMA] = SHIPPED.read_text()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; give the name of a new folder")
        for name, text in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}; give another folder") from error
    return sorted(contents)


def project_files(kind: Kind, project: str) -> Iterator[tuple[str, str]]:
    """The name and the text of every file of a project."""
    values = {
        "project": project,
        "project_id": re.sub(r"\W", "_", project),
        "about": kind.about,
        "build": kind.build,
        "files": "\n".join(f"| `{name}` | {what} |" for name, what in kind.files),
    }
    for folder in ("common", *kind.folders):
        for name, text in _templates(TEMPLATES / folder):
            text = _filled(text, values)
            if name == "README.md" and not kind.build:
                text = text.replace("    \n", "")  # there is nothing to build
            yield _filled(name, values), text


def _templates(folder: Path) -> Iterator[tuple[str, str]]:
    """The name in the project and the text of every template in a folder."""
    for path in sorted(folder.rglob(f"*{ENDING}")):
        yield path.relative_to(folder).as_posix().removesuffix(ENDING), path.read_text()


def _filled(text: str, values: dict[str, str]) -> str:
    """The text with the places of ours filled; places of a case's own stay."""
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _project_name(folder: Path) -> str:
    """The folder's name in letters that files, jobs and YAML take without quotes."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.absolute().name).strip("-_")
    return name if name[:1].isalpha() else f"project-{name}".rstrip("-")
