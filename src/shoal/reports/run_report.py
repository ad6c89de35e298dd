"""Writes `report.html`: of a run at its end, or of any runs on request."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import ConfigError
from shoal.reports.reported_runs import ReportedRun, read_run
from shoal.reports.run_page import ReportInput, run_page
from shoal.runs.atomic_files import replace_file

REPORT_FILE = "report.html"
QUICK_S = 10.0  # who trains for less does not wait to be diagnosed


def leave_report(folder: Path) -> None:
    """Write the report of a run into its folder, if there is a result to report."""
    run = read_run(folder)
    if run.columns:
        is_short = (run.last("time_total_s") or 0.0) < QUICK_S
        about = ReportInput([run], folder / REPORT_FILE, has_findings=not is_short)
        replace_file(folder / REPORT_FILE, run_page(about).encode())


def write_report(runs: Sequence[ReportedRun], place: Path, by: Sequence[str], cases: Sequence[Path]) -> None:
    """Write the report of runs to a file."""
    tables = [(path.name, _table(path)) for path in cases]
    text = run_page(ReportInput(runs, place, by, tables))
    try:
        replace_file(place, text.encode())
    except OSError as error:
        raise ConfigError(f"-o {place}: cannot be written: {error.strerror or error}; give another file") from None


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
