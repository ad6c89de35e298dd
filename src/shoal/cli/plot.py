"""`shoal plot`: learning curves of runs, or trajectories of episodes, as a figure in a file or in the terminal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.completion import runs as run_names
from shoal.cli.options import Command, where_option
from shoal.cli.paths import short_path

if TYPE_CHECKING:
    from shoal.reports.bands import Statistic

TERMINAL_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
HEIGHT, SMALL_HEIGHT = 16, 8


@click.command(cls=Command)
@click.argument("paths", nargs=-1, metavar="RUN...", shell_complete=run_names)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Result, or variable of trajectories, to draw; repeatable: one panel each.  [default: episode_reward_mean, "
    "or every variable]",
)
@click.option(
    "--x",
    "axis",
    type=click.Choice(["timesteps_total", "time_total_s", "training_iteration", "episodes_total"]),
    default="timesteps_total",
    show_default=True,
    help="What the metric is drawn over.",
)
@click.option(
    "--smooth", type=click.IntRange(1), default=1, show_default=True, help="Results in the window of a moving mean."
)
@click.option(
    "--trajectories",
    type=click.Path(path_type=Path),
    metavar="PARQUET",
    help="Draw the episodes of this file of `shoal evaluate --trajectories` instead of runs.",
)
@click.option(
    "--paths", "variables", metavar="X,Y", help="Of trajectories: one variable over another, e.g. obs[0],obs[1]."
)
@click.option("--by", multiple=True, metavar="KEY", help="Group by this setting, or by name; repeatable.")
@click.option(
    "--statistic", type=click.Choice(["iqm", "mean"]), default="iqm", show_default=True, help="Middle of the seeds."
)
@click.option("-o", "--output", "files", multiple=True, metavar="FILE", help="A .pdf, .png or .svg; repeatable.")
@click.option("--show", is_flag=True, help="Draw in the terminal, which is the default without -o.")
@where_option()
def plot(
    paths: tuple[str, ...],
    metrics: tuple[str, ...],
    axis: str,
    smooth: int,
    trajectories: Path | None,
    variables: str | None,
    by: tuple[str, ...],
    statistic: Statistic,
    files: tuple[str, ...],
    show: bool,
    results_dir: str | None,
) -> None:
    """Draw learning curves of RUN...: folders of runs, names of experiments (all runs of each) and sweeps.

    Runs that differ in nothing but the seed are one line with a band; the others are told apart by the settings that
    differ. The runs may still be training.

    With --trajectories, draw what happened in episodes: a panel for each variable, a line for each episode.
    """
    _check_given(click.get_current_context(), paths, trajectories, variables, metrics)
    from shoal.reports.figures import check_file, write_figure

    for file in files:
        check_file(Path(file).expanduser())
    chosen = list(dict.fromkeys(metrics))
    if trajectories is not None:
        from shoal.reports.trajectories import curves_plot, paths_plot, read_trajectories

        found = read_trajectories(trajectories.expanduser())
        data = curves_plot(found, chosen) if variables is None else paths_plot(found, variables)
    else:
        from shoal.reports.plot_data import plot_data
        from shoal.reports.reported_runs import read_runs

        runs = read_runs(paths, results_dir)
        data = plot_data(runs, chosen or ["episode_reward_mean"], axis, smooth, statistic, by)
    for sentence in data.warnings:
        click.echo(f"Warning: {sentence}.", err=True)
    for file in files:
        path = Path(file).expanduser().absolute()
        write_figure(data, path)
        click.echo(f"{short_path(path)}: {data.caption}")
    if show or not files:
        from shoal.machine.terminal import can_redraw
        from shoal.reports.terminal_plot import terminal_plot

        paint = _painted if can_redraw() and not os.environ.get("NO_COLOR") else None
        width = min(shutil.get_terminal_size().columns, 110)
        height = HEIGHT if len(data.panels) < 4 else SMALL_HEIGHT
        if data.title:
            click.echo(data.title)
        for panel in data.panels:
            click.echo("\n".join(terminal_plot(panel, width, height, paint)))
        click.echo(data.short_caption)


def _check_given(
    ctx: click.Context,
    paths: tuple[str, ...],
    trajectories: Path | None,
    variables: str | None,
    metrics: tuple[str, ...],
) -> None:
    """Refuse options that have nothing to do with what is drawn."""
    if trajectories is None:
        if variables is not None:
            raise click.UsageError("--paths is for --trajectories FILE.parquet; add that, or leave --paths out.")
        if not paths:
            raise click.UsageError("Name a RUN, or a file of --trajectories.")
        return
    if paths:
        raise click.UsageError(f"Use either RUN... or --trajectories (got {paths[0]} too).")
    if variables is not None and metrics:
        raise click.UsageError("Use either --metric or --paths.")
    given = ("axis", "--x"), ("smooth", "--smooth"), ("by", "--by"), ("statistic", "--statistic")
    for name, option in given:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is for runs; leave it out with --trajectories.")


def _painted(text: str, place: int) -> str:
    return click.style(text, fg=TERMINAL_COLOURS[place % len(TERMINAL_COLOURS)])
