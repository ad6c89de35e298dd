"""`shoal incidents` and `shoal replay`: what went wrong in a run's environments, and the same once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from shoal.cli.completion import runs
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.data.number_text import counted


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@click.option(
    "--last", type=click.IntRange(min=1), default=50, show_default=True, help="Number of newest incidents to list."
)
@click.option("--json", "as_json", is_flag=True, help="Print all of them as JSON lines.")
@where_option()
def incidents(path: str, last: int, as_json: bool, results_dir: str | None) -> None:
    """List the failures of a run's environments; `shoal replay RUN N` runs the episode of one again."""
    import json

    from shoal.runs.incidents import read_incidents
    from shoal.runs.lost_processes import disappearance

    folder = _folder(path, results_dir)
    found, lost = read_incidents(folder), disappearance(folder)
    if as_json:
        for entry in found:
            click.echo(json.dumps(entry))
        return
    if not found:
        click.echo(f"{short_path(folder)}: no environment has failed.")
        if lost is not None:
            click.echo(lost)
        return
    for line in _table(found[-last:]):
        click.echo(line)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(entry["kind"] for entry in found).most_common())
    shown = "" if len(found) <= last else f" The last {last} are listed."
    click.echo(f"{len(found)} in all: {kinds}.{shown} Run one again: shoal replay {short_path(folder)} N")
    if lost is not None:
        click.echo(lost)


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@click.argument("number", metavar="N", type=click.IntRange(min=1))
@click.option("--pdb", "debug", is_flag=True, help="Stop in the debugger where the environment fails.")
@click.option("--render", is_flag=True, help="Show the episode in a window.")
@where_option()
@trust_option
def replay(path: str, number: int, debug: bool, render: bool, results_dir: str | None, trust: bool) -> None:
    """Run the episode of incident N of a run again: the same seed, task, drawn values and actions.

    It runs in a process of its own under the run's own deadlines; with --pdb or --render, in this one. The exit code is
    0 if the environment fails again at the same step, and 1 if it does not.
    """
    from shoal.runs.incidents import exit_text, incident_of
    from shoal.runs.replaying import EpisodeReplay

    folder = _folder(path, results_dir)
    entry = incident_of(folder, number)
    click.echo(f"incident {number}: {_place(entry)}: {entry['cause']}")
    if entry.get("scratch"):
        click.echo(f"What it had written to its scratch_dir is kept in {entry['scratch']}.")
    again = EpisodeReplay(folder, entry, trust)
    found = again.run_here(render, _debug if debug else None) if debug or render else again.run()
    incident = found.incident
    if incident is None:
        click.echo(f"It did not fail again: {counted(found.steps, 'step')} since the seed went well.")
        click.get_current_context().exit(1)
    text = incident.output or incident.traceback
    if text and not debug:
        click.echo(text.rstrip())
    ended = exit_text({"exit_code": incident.exit_code})
    ended_by = f" ({ended})" if ended else ""
    where = f"{counted(incident.steps_since_seed, 'step')} after the seed, at step {incident.step} of its episode"
    if found.is_same(entry):
        click.echo(f"It failed again at the same step, {where}: {incident.cause}{ended_by}")
        return
    click.echo(f"It failed at another step, {where}: {incident.cause}{ended_by}")
    click.get_current_context().exit(1)


def _folder(path: str, results_dir: str | None) -> Any:
    from shoal.cli.run_names import found_run
    from shoal.runs.folders import find_run

    return find_run(found_run(path, results_dir, is_trained=False))


def _debug(error: BaseException) -> None:
    import pdb

    click.echo(f"{type(error).__name__}: {error}")
    pdb.post_mortem(error.__traceback__)


def _place(entry: Mapping[str, Any]) -> str:
    host = f" on {entry['host']}" if entry["host"] else ""
    return f"environment {entry['env_index']}{host}, step {entry['step']}, seed {entry['seed']}"


def _table(entries: list[dict[str, Any]]) -> list[str]:
    from datetime import datetime

    head = ("N", "time", "env", "host", "kind", "iteration", "step", "since seed", "replay", "cause")
    rows = [
        (
            str(entry["number"]),
            datetime.fromtimestamp(entry["time"]).strftime("%Y-%m-%d %H:%M:%S"),
            str(entry["env_index"]),
            entry["host"] or "-",
            entry["kind"],
            str(entry.get("training_iteration", "-")),
            str(entry["step"]),
            str(entry["steps_since_seed"]),
            "yes" if entry["actions"] is not None or not entry["steps_since_seed"] else "-",
            entry["cause"],
        )
        for entry in entries
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in (head, *rows)
    ]
