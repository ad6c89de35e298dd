"""`shoal presets`: tuned settings for known environments, what they reach, and how they were found."""

from __future__ import annotations

import json
import os
import statistics
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import presets as names
from shoal.cli.options import Command
from shoal.errors import ConfigError

# Looking for plugins would cost pydantic more than all it does here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

if TYPE_CHECKING:
    from shoal.config.presets import Preset


@click.command(cls=Command)
@click.argument("text", metavar="[NAME|TEXT]", required=False, shell_complete=names)
@click.option("--sweep", "as_sweep", is_flag=True, help="Print the sweep that found the preset NAME, for shoal tune.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, for programs.")
def presets(text: str | None, as_sweep: bool, as_json: bool) -> None:
    """List tuned settings for known environments, with the return that they reach and that of the defaults.

    TEXT is a part of a name or of an environment. The whole NAME of a preset shows its settings and the command that
    found them. `shoal train ENV --preset` trains with them.
    """
    if as_sweep and as_json:
        raise click.UsageError("--sweep prints YAML and --json a list; leave one of them out.")
    chosen = _chosen(text)
    is_one = len(chosen) == 1 and chosen[0].name == text
    if as_sweep:
        if not is_one:
            raise click.UsageError("--sweep needs the whole name of a preset; `shoal presets` lists them.")
        click.echo(_own_sweep(chosen[0]), nl=False)
    elif as_json:
        click.echo(json.dumps([preset.model_dump() for preset in chosen], indent=1))
    elif is_one:
        click.echo(_described(chosen[0]))
    else:
        click.echo("\n".join(_table(chosen)))


def _chosen(text: str | None) -> list[Preset]:
    """The preset of a name, or all that have the text in their name or environment."""
    from shoal.config.presets import all_presets
    from shoal.config.vocabulary import nearest

    known = all_presets()
    if text is None or text in known:
        return list(known.values()) if text is None else [known[text]]
    found = [p for p in known.values() if text.lower() in p.name.lower() or text.lower() in p.env.lower()]
    if not found:
        close = nearest(text, [*known, *(preset.env for preset in known.values())])
        hint = f"did you mean {close}?" if close else "`shoal presets` lists all of them"
        raise ConfigError(f"no preset matches {text!r}; {hint}")
    return found


def _table(chosen: list[Preset]) -> list[str]:
    from shoal.data.number_text import number_text
    from shoal.runs.preset_notes import spread_text

    rows = [("name", "environment", "algorithm", "steps", "return: median (range)", "defaults")]
    for preset in chosen:
        measured = preset.measured
        usual = number_text(statistics.median(measured.default_returns))
        steps = f"{measured.timesteps_total:,}"
        rows.append((preset.name, preset.env, preset.run, steps, spread_text(measured.returns), usual))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _described(preset: Preset) -> str:
    """Its figures, how to use it, how it was found, and each setting beside the default."""
    from shoal.config.algorithms import ALGORITHMS
    from shoal.config.presets import flat, value_at
    from shoal.runs.preset_notes import spread_text
    from shoal.runs.resuming import typed_value

    measured = preset.measured
    run = "" if preset.run == "PPO" else f" --run {preset.run}"
    limit = f"--stop timesteps_total={measured.timesteps_total}"
    lines = [
        f"{preset.name}: {preset.run} on {preset.env}",
        f"  return    {spread_text(measured.returns)} after {measured.timesteps_total:,} steps",
        f"  defaults  {spread_text(measured.default_returns)}",
        f"  measured  {measured.date} with shoal {measured.shoal}, {measured.episodes} episodes of shoal evaluate each",
        f"  use       shoal train {preset.env}{run} --preset {limit}",
        f"  found     shoal presets {preset.name} --sweep > sweep.yml && shoal tune sweep.yml",
        "settings",
    ]
    settings, defaults = flat(preset.config), ALGORITHMS[preset.run]()
    width = max(len(path) for path in settings)
    for path, value in settings.items():
        usual = value_at(defaults, path)
        beside = "" if usual == value else f"  (default {typed_value(usual)})"
        lines.append(f"  {path:{width}}  {typed_value(value)}{beside}")
    return "\n".join(lines)


def _own_sweep(preset: Preset) -> str:
    """The file of its sweep."""
    from shoal.config.yaml_files import dump_yaml, schema_line

    return schema_line() + dump_yaml({preset.name: preset.sweep})
