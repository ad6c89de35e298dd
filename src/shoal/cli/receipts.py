"""`shoal checkpoints` and `shoal verify`: what a run has saved, and whether it is what was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs
from shoal.cli.options import Command, where_option
from shoal.cli.paths import short_path

if TYPE_CHECKING:
    from shoal.data.findings import Finding

HEADS = ("iteration", "steps", "size", "sha256", "")


@click.command(cls=Command)
@click.argument("path", metavar="RUN|NAME", shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per checkpoint.")
@where_option()
def checkpoints(path: str, as_json: bool, results_dir: str | None) -> None:
    """List the checkpoints of a run, after every byte of each was compared with its hash.

    The best is told by checkpoint_score_attr, or by episode_reward_mean. The exit code is 1 if one is damaged.
    """
    import json

    from shoal.cli.run_names import found_run
    from shoal.machine.memory import bytes_text
    from shoal.reports.tables import aligned
    from shoal.runs.folders import find_run
    from shoal.runs.verifying import listed_checkpoints

    folder = find_run(found_run(path, results_dir, is_trained=False, tells=not as_json))
    found = listed_checkpoints(folder)
    if as_json:
        for one in found:
            click.echo(json.dumps(one.to_json()))
    elif not found:
        click.echo(f"{short_path(folder)} has no checkpoints.")
    else:
        columns = [[head] for head in HEADS]
        newest_good = next((one for one in reversed(found) if one.problem is None), None)
        for one in found:
            words = [word for word, is_so in (("newest", one.is_newest), ("best", one.is_best)) if is_so]
            if one is newest_good and not one.is_newest:
                words.append("the newest that is good")
            elif one.problem is None:
                words.append("good")
            told = ", ".join([*words, *([one.problem] if one.problem else [])])
            steps = "-" if one.timesteps_total is None else f"{int(one.timesteps_total):,}"
            cells = (str(one.iteration), steps, bytes_text(one.size), (one.sha256 or "-")[:12], told)
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
        for line in aligned(columns, rights=3):
            click.echo(line)
        click.echo(f"{len(found)} checkpoint{'s' * (len(found) != 1)} in {short_path(folder)}")
    if any(one.problem for one in found):
        click.get_current_context().exit(1)


@click.command(cls=Command)
@click.argument("path", metavar="RUN|SWEEP|NAME", shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per finding.")
@where_option()
def verify(path: str, as_json: bool, results_dir: str | None) -> None:
    """Check the experiment, results, checkpoints and chain of receipts of a run, or of all runs of a sweep.

    Every hash is computed again, and each iteration must have its result. The exit code is 1 if anything is not what
    the training wrote.
    """
    import json
    from dataclasses import asdict

    from shoal.cli.findings import tell
    from shoal.data.number_text import counted

    total = problems = 0
    for folder, find in _checks(path, results_dir):
        if not as_json:
            click.echo(short_path(folder))
        for finding in find(folder):
            total += 1
            problems += finding.verdict == "problem"
            if as_json:
                click.echo(json.dumps({"run": str(folder), **asdict(finding)}))
            else:
                tell(finding, 20)
    if not as_json:
        click.echo(f"{counted(total, 'finding')}, {counted(problems, 'problem')}")
    if problems:
        click.get_current_context().exit(1)


def _checks(text: str, results_dir: str | None) -> list[tuple[Path, Callable[[Path], list[Finding]]]]:
    """The run that a person means, or a sweep and all its runs, each with what looks for findings in it."""
    from shoal.errors import ConfigError
    from shoal.reports.sweep_check import checked_trials
    from shoal.runs.folders import DEFAULT_RESULTS, SWEEP_FILE, find_named, find_run, is_run
    from shoal.runs.verifying import verify_run

    place = find_named(text, results_dir or DEFAULT_RESULTS)
    if not (place / SWEEP_FILE).is_file():
        return [(find_run(place), verify_run)]
    of_trials = checked_trials(place)
    found = sorted(child for child in (place / "trials").glob("*") if is_run(child))
    if not found and of_trials.verdict != "problem":
        raise ConfigError(f"{place} is a sweep whose trials are no runs; there is nothing to verify.")
    return [(place, lambda _: [of_trials]), *((run, verify_run) for run in found)]
