"""`shoal migrate`: experiment files of RLlib and Stable-Baselines3 in our words, with what becomes of each line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import algorithms
from shoal.cli.options import Command
from shoal.cli.paths import short_path, typed_path
from shoal.errors import ConfigError

# Looking for plugins would cost pydantic more than all it does here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

if TYPE_CHECKING:
    from shoal.config.migration import Migration
    from shoal.config.migration_draft import Draft, MovedSetting

MOST_BYTES = 1_000_000
SOMETHING_GONE = 1


@click.command(cls=Command)
@click.argument("old", metavar="OLD")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The new file; default: stdout.")
@click.option(
    "--from",
    "dialect",
    type=click.Choice(["rllib1", "rllib2", "sb3"]),
    help="Whose words the file has; default: what they look like.",
)
@click.option("--run", metavar="ALGORITHM", shell_complete=algorithms, help="The algorithm, where the file has none.")
@click.option("--env", metavar="ENV", help="The environment, where the file has none or another.")
@click.option("--only", metavar="NAME", multiple=True, help="Only this experiment of the file; repeatable.")
@click.option("--keep-defaults", is_flag=True, help="Write the other library's defaults where ours differ.")
@click.option("--strict", is_flag=True, help="End with exit code 1 if a setting has no counterpart.")
@click.option("--force", is_flag=True, help="Replace the new file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, and without -o the new file, as JSON.")
def migrate(
    old: str,
    output: Path | None,
    dialect: str | None,
    run: str | None,
    env: str | None,
    only: tuple[str, ...],
    keep_defaults: bool,
    strict: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Rewrite OLD, an experiment file of RLlib or Stable-Baselines3, and say what becomes of each of its lines.

    OLD is a YAML file of `rllib train -f`, params.json of a Tune trial, a configuration of RLlib 2 in JSON or YAML,
    hyperparameters of rl-baselines3-zoo, or - for standard input. Without -o the new file goes to standard output and
    the report to standard error. `shoal train -f NEW` trains it.

    \b
    Exit codes:
      0  the new file is written, and shoal's own loader accepts it
      1  with --strict: it is written, but some settings have no counterpart
      2  OLD cannot be read or names no environment, or the new file exists; nothing is written
    """
    from shoal.config.migration import migrate as migrated
    from shoal.config.migration_draft import Wishes
    from shoal.config.yaml_files import schema_line

    if output is not None and output.exists() and not force:
        raise ConfigError(f"{output} exists already; give another name, or --force to replace it")
    wishes = Wishes(dialect, run, env, only, keep_defaults)
    found = migrated(_text(old), "standard input" if old == "-" else old, wishes)
    text = schema_line() + found.text()
    if output is not None:
        _write(output, text, force)
    if as_json:
        click.echo(json.dumps(_as_json(found, None if output is not None else text, output), indent=1, default=str))
    else:
        if output is None:
            click.echo(text, nl=False)
        for line in _report(found, output, keep_defaults):
            click.echo(line, err=output is None)
    if strict and found.counts()["gone"]:
        sys.exit(SOMETHING_GONE)


def _text(old: str) -> str:
    """The text of the old file."""
    try:
        if old == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            path = Path(old)
            if path.is_dir():
                raise ConfigError(f"{old}: is a folder; write the name of the file in it, such as {old}/params.json")
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{old}: there is no such file; check the path and the working folder") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{old}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{old}: is larger than 1 MB; that is not an experiment file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        what = "; params.pkl is a pickle, and is not opened: take params.json" if old.endswith(".pkl") else ""
        raise ConfigError(f"{old}: is not UTF-8 text{what}") from None


def _write(output: Path, text: str, force: bool) -> None:
    """Write the new file, whole or not at all."""
    from shoal.runs.atomic_files import replace_file, write_file

    try:
        if force:
            replace_file(output, text.encode())
        else:
            write_file(output, text.encode())
    except FileExistsError:
        raise ConfigError(f"{output} exists already; give another name, or --force to replace it") from None
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}; give another name") from None


def _as_json(found: Migration, text: str | None, output: Path | None) -> dict[str, Any]:
    """The report for programs."""
    return {
        "source": found.source,
        "from": found.dialect,
        "written": str(output) if output is not None else None,
        "text": text,
        "counts": found.counts(),
        "left_out": list(found.left_out),
        "experiments": [
            {
                "name": draft.name,
                "settings": [one.as_json() for one in _in_order(draft)],
                "defaults": [
                    {"key": key, "there": theirs, "here": ours} for key, (theirs, ours) in draft.defaults.items()
                ],
            }
            for draft in found.drafts
        ],
    }


def _in_order(draft: Draft) -> list[MovedSetting]:
    """What became of the settings, in the order of the old file's lines."""
    return sorted(draft.moved_settings, key=lambda one: one.line or 0)


def _report(found: Migration, output: Path | None, keep_defaults: bool) -> list[str]:
    """The report for people."""
    from shoal.config.dialects import DIALECTS
    from shoal.config.migration import short
    from shoal.config.migration_draft import KINDS

    library = DIALECTS[found.dialect]
    count = len(found.drafts)
    lines = [f"{found.source}: {library}, {count} experiment{'s' * (count != 1)}"]
    for draft in found.drafts:
        lines += ["", draft.name]
        lines += [_line(one) for one in _in_order(draft) if one.kind != "idle"]
        idle = list(dict.fromkeys(one.there for one in _in_order(draft) if one.kind == "idle"))
        if idle:
            lines.append(f"        switched off, or of no use here: {_some(idle)}")
        if draft.defaults:
            what = "written, as there" if keep_defaults else f"ours are used; --keep-defaults writes {library}'s"
            lines.append(f"        left to defaults, which differ ({what}):")
            lines += [
                f"          {key.removeprefix('config.')}: {short(theirs)} there, {short(ours)} here"
                for key, (theirs, ours) in draft.defaults.items()
            ]
    for name in found.left_out:
        lines += ["", f"{name}: left out, for it is for many environments; --only {name} --env ENV writes it for one"]
    told = ", ".join(f"{number} {KINDS[kind]}" for kind, number in found.counts().items() if number)
    lines += ["", f"{sum(found.counts().values())} settings: {told}."]
    if output is not None:
        command = "tune" if found.is_sweep else "train"
        lines.append(
            f"Written to {short_path(output.absolute())}; run it: shoal {command} -f {typed_path(output.absolute())}"
        )
    return lines


def _line(one: MovedSetting) -> str:
    """What became of one setting."""
    from shoal.config.migration import short

    place = f"{one.line:>5}" if one.line is not None else "     "
    said = f"{one.there}: {short(one.value)}"
    if one.here and one.kind != "same":
        said += f" -> {one.here}: {short(one.now)}"
    return f"{place}  {one.kind:<7}  {said}" + (f"; {one.why}" if one.why else "")


def _some(names: list[str]) -> str:
    """The names, or the first of very many."""
    most = 12
    return ", ".join(names[:most]) + (f" and {len(names) - most} more (--json lists them)" if len(names) > most else "")
