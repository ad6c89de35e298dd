"""`shoal plugins`: what installed packages add to shoal, and whether it can be loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import click

from shoal.cli.options import Command

# Looking for plugins would cost pydantic more than all it does here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

GROUPS = {
    "algorithm": "shoal.algorithms",
    "scheduler": "shoal.schedulers",
    "logger": "shoal.loggers",
    "env format": "shoal.env_formats",
}
"""What a package may add, and the group of its entry points."""
MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Plugin:
    """One thing that an installed package adds."""

    kind: str
    name: str
    place: str  # module:object
    package: str
    problem: str = ""  # why it is not used


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Load each one and say which cannot be used; exit code 1 if there is any.")
def plugins(check: bool) -> None:
    """List what installed packages add: algorithms, schedulers, loggers and environment formats.

    A package adds one by an entry point of the group shoal.algorithms, shoal.schedulers, shoal.loggers or
    shoal.env_formats. Its code is imported when it is named, and by --check, but not by this list. examples/plugin is
    a package to begin with.
    """
    found = list(_found())
    if not found:
        click.echo("No installed package adds to shoal; examples/plugin is one to begin with.")
        return
    problems = [one.problem or (_problem(one) if check else "") for one in found]
    rows = [(one.kind, one.name, one.place, one.package) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row, problem in zip(rows, problems, strict=True):
        line = "  ".join([*(word.ljust(width) for word, width in zip(row, widths, strict=False)), row[3]])
        click.echo(line + (f"  BROKEN: {problem}" if problem else "  ok" if check else ""))
    if check and any(problems):
        sys.exit(1)


def _found() -> Iterator[Plugin]:
    """All that packages add, kind by kind; nothing of it is imported."""
    from importlib.metadata import entry_points

    for kind, group in GROUPS.items():
        points = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
        own = _own_names(kind)
        for point in points:
            yield Plugin(kind, point.name, point.value, _package(point), _conflict(point, points, own))


def _own_names(kind: str) -> Sequence[str]:
    """The names that shoal has itself."""
    if kind == "algorithm":
        from shoal.config.algorithms import BUILT_IN

        return [*BUILT_IN]
    if kind == "scheduler":
        from shoal.cluster.schedulers import BUILT_IN as schedulers

        return [*schedulers]
    if kind == "logger":
        from shoal.config.logger_names import LOGGERS

        return [*LOGGERS]
    from shoal.envs.env_formats import BUILT_IN as formats

    return formats


def _package(point: EntryPoint) -> str:
    about = point.dist.metadata if point.dist is not None else None
    return f"{about['Name']} {about['Version']}" if about is not None else "an unknown package"


def _conflict(point: EntryPoint, points: Sequence[EntryPoint], own: Sequence[str]) -> str:
    if point.name in own:
        return "not used, shoal has one of that name"
    if sum(other.name == point.name for other in points) > 1:
        return "more than one package has this name; uninstall all but one"
    return ""


def _problem(one: Plugin) -> str:
    """Why a plugin cannot be used, in one line; empty if it can."""
    try:
        _load(one)
    except SystemExit as error:
        return f"it exits when it is imported ({error})"
    except Exception as error:  # it is somebody else's code, and may raise anything
        text = " ".join(f"{error}".split()) or type(error).__name__
        return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
    return ""


def _load(one: Plugin) -> None:
    """Import a plugin as the one who is asked for it would."""
    if one.kind == "algorithm":
        from shoal.config.algorithms import ALGORITHMS

        ALGORITHMS[one.name]
    elif one.kind == "scheduler":
        from shoal.cluster.schedulers import scheduler_called

        scheduler_called(one.name)
    elif one.kind == "logger":
        from shoal.runs.loggers import check_loggers

        check_loggers([one.name])
    else:
        from shoal.envs.env_formats import FormatMaker

        FormatMaker(f"{one.name}:", one.place).function()
