"""`shoal config`: every key with its meaning, and the check of a file before any node-hour is spent."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import algorithms
from shoal.cli.editor_settings import EDITOR_FILES, write_editor_settings, write_whole
from shoal.cli.options import Command
from shoal.errors import ConfigError
from shoal.machine.terminal import is_terminal

# Looking for plugins would cost pydantic more than all it does here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

if TYPE_CHECKING:
    from shoal.config.overrides import Override
    from shoal.config.reference import KeyRow


WIDTH = 80
INDENT = " " * 6
BEGINNING = 400  # bytes of a schema that have its title


@click.group()
def config() -> None:
    """Show every configuration key, check a file, or tell editors what may stand in one."""


@config.command(cls=Command)
@click.argument("key", required=False)
@click.option(
    "--run",
    default="PPO",
    show_default=True,
    metavar="ALGORITHM",
    shell_complete=algorithms,
    help="Algorithm whose keys are shown.",
)
def show(key: str | None, run: str) -> None:
    """Show every key: type, default, meaning; or only KEY, such as lr, model, stop or scheduler."""
    from shoal.config import reference
    from shoal.config.experiment import algorithm_name

    run = algorithm_name(run)
    experiment, sweep, spaces = reference.experiment_rows(), reference.sweep_rows(), reference.space_rows()
    if key is not None:
        own = reference.config_rows(run)
        rows = _matching(key, own, [*experiment, *sweep, *spaces], reference.stop_rows())
        _print_table(rows) if is_terminal() else click.echo(_aligned(rows))
        return
    sections = {
        "Experiment": experiment,
        **{f"config: {title}": rows for title, rows in reference.topics(run).items()},
        "Sweep (shoal tune), beside the experiment's keys": [row for row in sweep if "." not in row.key],
        "Searches, in place of a value: {uniform: [low, high]}": spaces,
    }
    is_colored = is_terminal() and "NO_COLOR" not in os.environ
    text = "\n".join(_section(title, rows, is_colored) for title, rows in sections.items())
    click.echo_via_pager(text) if is_terminal() else click.echo(text, nl=False)


@config.command(cls=Command)
@click.argument("file", type=click.Path())
def check(file: str) -> None:
    """List every problem of a file of experiments or sweeps; exit code 2 if there is one."""
    from shoal.config.experiment import experiment_from, from_file, sweep_words

    def kind(tree: dict[str, Any], overrides: list[Override]) -> str:
        """Check it as what it is."""
        if not sweep_words(tree):
            experiment_from(tree, overrides)
            return "experiment"
        from shoal.config.sweep import sweep_from

        sweep_from(tree, overrides)
        return "sweep"

    found = from_file(file, [], kind)
    counts = [(found.count(word), word) for word in ("experiment", "sweep") if word in found]
    told = " and ".join(f"{count} {word}{'s' * (count > 1)}" for count, word in counts)
    click.echo(f"{file}: {told}, no problems")


@config.command(cls=Command)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to a file.")
@click.option("--vscode", is_flag=True, help="Write it to .vscode of this folder, with the settings that use it.")
@click.option(
    "--files",
    multiple=True,
    metavar="GLOB",
    help=f"Files that --vscode is for; repeatable; default: {', '.join(EDITOR_FILES)}.",
)
def schema(output: Path | None, vscode: bool, files: tuple[str, ...]) -> None:
    """Print the JSON Schema (draft-07) of experiment files: completion and red lines in editors.

    It has the algorithms of installed packages too. YAML files that shoal writes name the schema in their first line;
    for your own, --vscode tells Visual Studio Code (with its YAML extension), and keeps all other settings.
    """
    if vscode and output is not None:
        raise click.UsageError("--vscode has its own place for the schema; leave -o out.")
    if files and not vscode:
        raise click.UsageError("--files is for --vscode.")
    from shoal.config.algorithms import algorithm_names
    from shoal.config.schema import TITLE, schema_text
    from shoal.config.yaml_files import schema_line

    if vscode:
        for line in write_editor_settings(Path.cwd(), lambda: schema_text(algorithm_names()), files or EDITOR_FILES):
            click.echo(line)
    elif output is None:
        click.echo(schema_text(algorithm_names()), nl=False)
    else:
        from shoal.runs.atomic_files import refuse_foreign

        refuse_foreign(output, "schema of shoal's", lambda file: TITLE.encode() in file.read(BEGINNING), "-o")
        write_whole(output, schema_text(algorithm_names()))
        click.echo(f"Written to {output}; a YAML file beside it begins with: {schema_line(output.name).rstrip()}")


def _matching(key: str, own: list[KeyRow], experiment: list[KeyRow], stop: list[KeyRow]) -> list[KeyRow]:
    """The row of a key and of the keys inside it."""
    plain = key.removeprefix("config.")
    known = [*own, *experiment, *stop]
    rows = [row for row in known if row.key == plain or row.key.startswith(f"{plain}.")]
    if key == "config":
        rows = own
    if not rows:
        from shoal.config.vocabulary import key_hint

        places = [*(f"config.{row.key}" for row in own), *(row.key for row in (*experiment, *stop))]
        raise ConfigError(f"{key}: unknown key{key_hint(f'config.{plain}', places)}")
    return rows


def _section(title: str, rows: list[KeyRow], is_colored: bool) -> str:
    """A topic in at most 80 columns: each key with its default and type, and below it what it means."""
    lines = [click.style(title, bold=True) if is_colored else title]
    for row in rows:
        key = click.style(row.key, fg="cyan") if is_colored else row.key
        default = f" = {row.default}" if row.default else ""
        plain = f"  {row.key}{default}  ({row.type})"
        if len(plain) <= WIDTH:
            lines.append(f"  {key}{default}  ({row.type})")
        else:
            lines.append(f"  {key}{default}")
            lines += textwrap.wrap(f"({row.type})", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
        lines += textwrap.wrap(row.meaning, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n".join(lines) + "\n"


def _aligned(rows: list[KeyRow]) -> str:
    """Plain columns for pipes: one line per key, no control codes."""
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row.meaning]).rstrip()
        for row in rows
    )


def _print_table(rows: list[KeyRow]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("key", style="cyan", overflow="fold")
    table.add_column("type", overflow="fold", max_width=24)
    table.add_column("default", style="green", overflow="fold", max_width=18)
    table.add_column("meaning")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
