"""`shoal plot`: learning curves of runs, as a figure in a file or in the terminal."""

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
HEIGHT = 16


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Result to draw; repeatable: one panel each.  [default: episode_reward_mean]",
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
    by: tuple[str, ...],
    statistic: Statistic,
    files: tuple[str, ...],
    show: bool,
    results_dir: str | None,
) -> None:
    """Draw learning curves of RUN...: folders of runs, names of experiments (all runs of each) and sweeps.

    Runs that differ in nothing but the seed are one line with a band; the others are told apart by the settings that
    differ. The runs may still be training.
    """
    from shoal.reports.figures import check_file, write_figure
    from shoal.reports.plot_data import plot_data
    from shoal.reports.reported_runs import read_runs

    for file in files:
        check_file(Path(file).expanduser())
    chosen = metrics or ("episode_reward_mean",)
    data = plot_data(read_runs(paths, results_dir), list(dict.fromkeys(chosen)), axis, smooth, statistic, by)
    for file in files:
        path = Path(file).expanduser().absolute()
        write_figure(data, path)
        click.echo(f"{short_path(path)}: {data.caption}")
    if show or not files:
        from shoal.machine.terminal import can_redraw
        from shoal.reports.terminal_plot import terminal_plot

        paint = _painted if can_redraw() and not os.environ.get("NO_COLOR") else None
        width = min(shutil.get_terminal_size().columns, 110)
        click.echo(data.title)
        for panel in data.panels:
            click.echo("\n".join(terminal_plot(panel, width, HEIGHT, paint)))
        click.echo(data.short_caption)


def _painted(text: str, place: int) -> str:
    return click.style(text, fg=TERMINAL_COLOURS[place % len(TERMINAL_COLOURS)])
