"""`shoal report`: a page about runs that opens in any browser."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.cli.completion import runs as run_names
from shoal.cli.options import Command, where_option
from shoal.cli.paths import short_path
from shoal.errors import ConfigError


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="RUN...", shell_complete=run_names)
@click.option("-o", "--output", metavar="FILE", help="The page; default: report.html in the run's folder, or here.")
@click.option("--by", multiple=True, metavar="KEY", help="Group by this setting, or by name; repeatable.")
@click.option(
    "--cases", multiple=True, metavar="FILE.csv", help="Results of `shoal evaluate --cases` to show; repeatable."
)
@where_option()
def report(
    paths: tuple[str, ...], output: str | None, by: tuple[str, ...], cases: tuple[str, ...], results_dir: str | None
) -> None:
    """Write one page about RUN...: folders of runs, names of experiments (all runs of each) and sweeps.

    It has the verdict first, then curves, times, incidents, evaluations and the configuration, and needs no network.
    The runs may still be training.
    """
    from shoal.reports.reported_runs import read_runs
    from shoal.reports.run_report import REPORT_FILE, write_report

    file = None if output is None else Path(output).expanduser().absolute()
    if file is not None and (file.suffix.lower() not in (".html", ".htm") or file.is_dir()):
        raise ConfigError(f"-o {output}: is not the name of a page; write e.g. -o report.html")
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no folder {file.parent}; give a folder that exists")
    found = read_runs(paths, results_dir)
    if file is None:
        file = found[0].path / REPORT_FILE if len(found) == 1 else Path.cwd() / REPORT_FILE
    write_report(found, file, by, [Path(case).expanduser() for case in cases])
    click.echo(f"{short_path(file)}: {len(found)} run{'s' * (len(found) != 1)}; open it in a browser")
