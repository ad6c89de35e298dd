"""Writes the pages of the reference from the code: keys, commands, results, random streams, words, Python.

And the lines of code that other pages name as `file.py`: `Name`, each file on a page of its own.

Nothing is described here: every sentence comes from the docstring, the help or the table that the program itself uses.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

import shoal
import shoal.envs
from shoal.cli.main import COMMANDS, main
from shoal.config.algorithms import ALGORITHMS, algorithm_names
from shoal.config.reference import KeyRow, config_rows, experiment_rows, space_rows, stop_rows, sweep_rows, topics
from shoal.config.vocabulary import FOREIGN, FOREIGN_RESULTS
from shoal.data.streams import INDICES, Stream

PLACE = re.compile(r"`([\w/]+\.py)`: `([\w.]+)`")


def write(folder: Path) -> None:
    """Write all pages; what has not changed keeps its time, so that Sphinx need not read it again."""
    pages = {
        "settings": settings_page(),
        "experiments": experiments_page(),
        "commands": commands_page(),
        "results": results_page(),
        "streams": streams_page(),
        "words": words_page(),
        "python": python_page(),
    }
    _write_pages(folder, pages)
    places = (place for page in sorted(folder.parent.glob("*.md")) for place in PLACE.findall(page.read_text()))
    named: dict[str, set[str]] = {}
    for file, name in places:
        named.setdefault(file, set()).add(name)
    _write_pages(folder / "code", {_slug(file): code_page(file, names) for file, names in named.items()})


def link_to_code(match: re.Match[str], to_docs: str) -> str:
    """A place in the code as a link to its lines, from a page that reaches docs/ by `to_docs`."""
    file, name = match.groups()
    return f"[`{file}`: `{name}`]({to_docs}reference/code/{_slug(file)}.md#{_slug(name)})"


def code_page(file: str, names: Iterable[str]) -> Iterator[str]:
    """The lines of the functions and classes of a file that pages name, with their numbers."""
    yield from (
        "---",
        "orphan: true",
        "---",
        "",
        f"# {file}",
        "",
        f"Below `src/shoal/`: the lines of `{file}` that other pages name.",
    )
    source = (Path(shoal.__file__).parent / file).read_text()
    for name in sorted(names, key=lambda name: source.find(f" {name.rpartition('.')[2]}(")):
        yield from ("", f"({_slug(name)})=", f"## {name}", "", f"```{{literalinclude}} ../../../src/shoal/{file}")
        yield from (":language: python", f":pyobject: {name}", ":lineno-match:", "```")


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")


def _write_pages(folder: Path, pages: dict[str, Iterator[str]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in pages.items():
        text = "\n".join(lines) + "\n"
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)
    for page in folder.glob("*.md"):
        if page.stem not in pages:
            page.unlink()


def settings_page() -> Iterator[str]:
    """The keys under `config`: those that every algorithm has once, then each algorithm's own."""
    yield "# Settings"
    yield ""
    yield "These keys stand under `config` in a file, in `--set config.KEY=VALUE`, and in the `config` of Python. "
    yield "`shoal config show --run NAME` prints the same for one algorithm."
    common = topics("PPO")
    for title, rows in common.items():
        if title != "PPO itself":
            yield from _section(title, rows)
    shared = {row.key for title, rows in common.items() if title != "PPO itself" for row in rows}
    for run in algorithm_names():
        own = [row for row in config_rows(run) if row.key not in shared]
        summary = (ALGORITHMS[run].__doc__ or "").partition("\n")[0]
        yield from ("", f"## {run}", "", summary)
        yield from _key_table(own)


def experiments_page() -> Iterator[str]:
    """The keys beside `config`, what may stand under `stop`, and those of sweeps."""
    yield "# Experiments and sweeps"
    yield ""
    yield "An experiment is a name with these keys below it; `config` holds the [settings](settings.md)."
    yield from _section("Experiment", experiment_rows())
    yield from _section("Stop", stop_rows())
    yield from _section("Sweep", sweep_rows())
    yield from _section("In place of a value", space_rows())


def commands_page() -> Iterator[str]:
    """The help of every command, as `--help` prints it."""
    yield "# Commands"
    for name in COMMANDS:
        with click.Context(main, info_name="shoal") as parent:
            command = main.get_command(parent, name)
            assert command is not None
            yield from _help(command, click.Context(command, info_name=name, parent=parent, terminal_width=100))


def results_page() -> Iterator[str]:
    """The columns of progress.csv and keys of result.json."""
    yield "# Results"
    yield ""
    yield "One line per iteration in `result.json` and `progress.csv`, and what `train()` returns. Names with a slash"
    yield 'are nested: `result["timers"]["learn_s"]`.'
    rows = [KeyRow(row.key.removeprefix("stop."), row.type, "", row.meaning) for row in stop_rows()]
    yield from _table(("name", "meaning"), ((f"`{row.key}`", row.meaning) for row in rows))


def streams_page() -> Iterator[str]:
    """Every use of chance."""
    yield "# Random streams"
    yield ""
    yield " ".join((inspect.getdoc(inspect.getmodule(Stream)) or "").split())
    comments = _comments(Stream)
    rows = ((stream.name, str(int(stream)), str(INDICES.get(stream, 0)), comments[stream.name]) for stream in Stream)
    yield from _table(("stream", "number", "indices", "what it is for"), rows)


def words_page() -> Iterator[str]:
    """Words of other libraries and what is said here instead."""
    yield "# Words of other libraries"
    yield ""
    yield "A key of RLlib's new API, of Stable-Baselines3 or of a paper is refused with the word that is used here."
    both = {**FOREIGN, **FOREIGN_RESULTS}
    yield from _table(("there", "here"), ((f"`{there}`", here) for there, here in both.items()))


def python_page() -> Iterator[str]:
    """The public names."""
    yield "# Python"
    yield ""
    yield "`import shoal` has these names and no others; everything else may change without notice."
    yield from _names("shoal", shoal.__all__)
    yield from ("", "## Tuning", "", "What `shoal.tune` has:")
    yield from _names("shoal.tune", (name for name in shoal.tune.__all__ if name not in shoal.__all__ or name == "run"))
    yield from ("", "## Environments", "", "What `shoal.envs` has for simulators behind files, MPI or GTP:")
    yield from _names("shoal.envs", shoal.envs.__all__)
    if find_spec("stable_baselines3") is not None:
        yield from ("", "## Stable-Baselines3", "", "What `shoal.sb3` has (`pip install 'shoal-rl[sb3]'`):")
        yield from _names("shoal.sb3", ["RayVecEnv"])


def _names(module: str, names: Iterable[str]) -> Iterator[str]:
    """The classes and functions of a module, each described by its own docstring."""
    for name in names:
        found = getattr(import_module(module), name)
        if inspect.isclass(found) or inspect.isfunction(found):
            kind = "autoexception" if inspect.isclass(found) and issubclass(found, BaseException) else "autoclass"
            directive = kind if inspect.isclass(found) else "autofunction"
            place = f"{found.__module__}.{found.__qualname__}"
            title = f"## {name}" if module == "shoal" else f"### {module}.{name}"
            yield from ("", title, "", "```{eval-rst}", f".. {directive}:: {place}")
            if directive == "autoclass":
                yield "   :members:"
            yield "```"


def _help(command: click.Command, ctx: click.Context) -> Iterator[str]:
    yield from ("", f"## {ctx.command_path}", "", "```text", command.get_help(ctx), "```")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from _help(inner, click.Context(inner, info_name=name, parent=ctx, terminal_width=100))


def _section(title: str, rows: Iterable[KeyRow]) -> Iterator[str]:
    yield from ("", f"## {title}")
    yield from _key_table(rows)


def _key_table(rows: Iterable[KeyRow]) -> Iterator[str]:
    cells = ((f"`{row.key}`", row.type, _code(row.default), row.meaning) for row in rows)
    yield from _table(("key", "type", "default", "meaning"), cells)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    for cells in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _comments(kind: type) -> dict[str, str]:
    """The comment behind each name of an enumeration."""
    lines = (line.partition("  # ") for line in inspect.getsource(kind).splitlines())
    return {name.partition("=")[0].strip(): comment for name, _, comment in lines if comment}
