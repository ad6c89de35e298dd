"""From what a person calls a run (a folder, a checkpoint, a name, a sweep) to its place, told if it was looked up."""

from __future__ import annotations

import os
from pathlib import Path

import click

from shoal.cli.paths import short_path


def found_run(text: str, results_dir: str | None, is_trained: bool = True, tells: bool = True) -> Path:
    """The run or checkpoint that a person means, and of a sweep its best trial; what was not given as such is told.

    Of a name it is the newest run, with `is_trained` the newest that has a checkpoint. Who prints for programs tells
    nothing.
    """
    from shoal.runs.folders import DEFAULT_RESULTS, find_named

    place = find_named(text, results_dir or DEFAULT_RESULTS, is_trained)
    trial = best_trial(place)
    if trial is not None and not tells:
        return trial
    if trial is not None:
        click.echo(f"{text} is the sweep {short_path(place)}; its best trial is {trial.name}")
        return trial
    if tells and place != Path(os.path.abspath(os.path.expanduser(text))):
        click.echo(f"{text} is {short_path(place)}")
    return place


def best_trial(place: Path) -> Path | None:
    """The folder of the best trial of a sweep; None if the place is of no sweep."""
    from shoal.runs.folders import SWEEP_FILE

    if not (place / SWEEP_FILE).is_file():
        return None
    from shoal.reports.analysis import Analysis

    return Analysis(place).get_best_trial().path
