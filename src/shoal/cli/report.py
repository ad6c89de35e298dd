"""`shoal report`: a page about runs that opens in any browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from shoal.cli.completion import runs as run_names
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.errors import ConfigError

MOST_FILMED = 4


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option("-o", "--output", metavar="FILE", help="The page; default: report.html in the run's folder, or here.")
@click.option("--by", multiple=True, metavar="KEY", help="Group by this setting, or by name; repeatable.")
@click.option(
    "--cases", multiple=True, metavar="FILE.csv", help="Results of `shoal evaluate --cases` to show; repeatable."
)
@click.option(
    "--trajectories",
    multiple=True,
    metavar="FILE.parquet",
    help="Trajectories of `shoal evaluate --trajectories` to show; repeatable.",
)
@click.option("--video", is_flag=True, help="Film an episode of each run's best policy first, as its replay.mp4.")
@where_option()
@trust_option
def report(
    paths: tuple[str, ...],
    output: str | None,
    by: tuple[str, ...],
    cases: tuple[str, ...],
    trajectories: tuple[str, ...],
    video: bool,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Write one page about RUN...: folders of runs, names of experiments (all runs of each) and sweeps.

    It has the verdict first, then curves, times, incidents, evaluations, trajectories, videos and the configuration,
    and needs no network. The runs may still be training. Only --video runs anything: their environments.
    """
    from shoal.data.number_text import counted
    from shoal.reports.reported_runs import left_out, read_runs
    from shoal.reports.run_report import REPORT_FILE, ReportFiles, write_report

    file = None if output is None else Path(output).expanduser().absolute()
    if file is not None and (file.suffix.lower() not in (".html", ".htm") or file.is_dir()):
        raise ConfigError(f"-o {output}: is not the name of a page; write e.g. -o report.html")
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no folder {file.parent}; give a folder that exists")
    found = read_runs(paths, results_dir)
    if file is None:
        file = found[0].path / REPORT_FILE if len(found) == 1 else Path.cwd() / REPORT_FILE
    more = ReportFiles.read([Path(one).expanduser() for one in cases], [Path(one).expanduser() for one in trajectories])
    if video:
        _film([run.path for run in found], trust)
    write_report(found, file, by, more)
    for sentence in left_out(found):
        click.echo(f"Warning: {sentence}.", err=True)
    count = sum(bool(run.columns) for run in found)
    click.echo(f"{short_path(file)}: {counted(count, 'run')}; open it in a browser")


def _film(folders: Sequence[Path], trust: bool) -> None:
    """Film a replay of each run, into its folder."""
    if len(folders) > MOST_FILMED:
        raise ConfigError(
            f"--video: films an episode of each run, of at most {MOST_FILMED} (got {len(folders)}); name fewer runs"
        )
    from shoal.data.number_text import counted, number_text
    from shoal.runs.playing import film_replay

    for folder in folders:
        replay = film_replay(folder, trust)
        episode = replay.episode
        came = "the first part of an episode"
        if episode is not None:
            came = f"return {number_text(episode.reward)}, {counted(episode.length, 'step')}"
        click.echo(f"{short_path(replay.path)}: {came}, {replay.checkpoint}")
