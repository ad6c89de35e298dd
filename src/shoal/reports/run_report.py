"""Writes `report.html`: of a run at its end, or of any runs on request."""

from __future__ import annotations

import csv
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ConfigError
from shoal.reports.reported_runs import ReportedRun, differing_keys, read_run, with_parents
from shoal.reports.run_page import ReportInput, run_page
from shoal.reports.trajectories import Trajectories, read_trajectories
from shoal.runs.atomic_files import replace_file
from shoal.runs.lineage import read_lineage

REPORT_FILE = "report.html"
QUICK_S = 10.0  # who trains for less does not wait to be diagnosed


def leave_report(folder: Path) -> None:
    """Write the report of a run into its folder, if there is a result to report."""
    run = read_run(folder)
    if run.columns:
        is_short = (run.last("time_total_s") or 0.0) < QUICK_S
        page = run_page(report_input([run], folder / REPORT_FILE, has_findings=not is_short))
        replace_file(folder / REPORT_FILE, page.encode())


@dataclass(frozen=True)
class ReportFiles:
    """What a report shows beside runs: results of cases, and trajectories, as `shoal evaluate` has written them."""

    cases: Sequence[tuple[str, list[list[str]]]] = ()
    trajectories: Sequence[Trajectories] = ()

    @classmethod
    def read(cls, cases: Sequence[Path], trajectories: Sequence[Path]) -> ReportFiles:
        """Those of files that a person names; what is no such file is refused."""
        tables = [(path.name, _table(path)) for path in cases]
        return cls(tables, [read_trajectories(path) for path in trajectories])

    @classmethod
    def newest(cls, folder: Path) -> ReportFiles:
        """Those of the last evaluations in a run's folder; what cannot be read, or is no regular file, is left out."""
        found = []
        for kind in ("csv", "parquet"):
            files = (file for file in folder.glob(f"evaluation_*.{kind}") if _age(file) > 0)
            found.append(sorted(files, key=_age)[-1:])
        try:
            return cls.read(*found)
        except ConfigError:
            return cls()


def report_input(
    runs: Sequence[ReportedRun],
    place: Path,
    by: Sequence[str] = (),
    more: ReportFiles | None = None,
    has_findings: bool = True,
    parents: Callable[[Path], bool] = lambda _: True,
) -> ReportInput:
    """What a report about runs shows: their parents too, and a single run's last evaluations if no others are named.

    `parents` says whether a folder may be read that a fork names as its parent's.
    """
    more = more or ReportFiles()
    own = ReportFiles.newest(runs[0].path) if len(runs) == 1 else ReportFiles()
    cases, trajectories = more.cases or own.cases, more.trajectories or own.trajectories
    runs = with_parents(runs, parents)
    return ReportInput(runs, place, _grouping(runs, by), cases, trajectories, has_findings)


def write_report(runs: Sequence[ReportedRun], place: Path, by: Sequence[str], more: ReportFiles) -> None:
    """Write the report of runs to a file."""
    text = run_page(report_input(runs, place, by, more))
    try:
        replace_file(place, text.encode())
    except OSError as error:
        raise ConfigError(f"-o {place}: cannot be written: {error.strerror or error}; give another file") from None


def _grouping(runs: Sequence[ReportedRun], by: Sequence[str]) -> Sequence[str]:
    """By what to tell runs apart: a fork that differs from its parent in no setting, by its name."""
    is_alike = len(runs) > 1 and not differing_keys(runs)
    has_fork = any(read_lineage(run.path) is not None for run in runs)
    return ("name",) if not by and is_alike and has_fork else by


def _age(path: Path) -> float:
    """When a regular file was changed; 0 for anything else, such as a pipe, or a link out of the folder."""
    try:
        status = path.lstat()
    except OSError:
        return 0.0
    return status.st_mtime if stat.S_ISREG(status.st_mode) else 0.0


def _table(path: Path) -> list[list[str]]:
    """The rows of a CSV file, the head first."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"--cases {path}: cannot be read: {why}; give a CSV file of `shoal evaluate --cases`"
        ) from None
    if not rows:
        raise ConfigError(f"--cases {path}: is empty; give a CSV file of `shoal evaluate --cases`")
    return rows
