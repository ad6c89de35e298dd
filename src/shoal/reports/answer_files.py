"""Writes what a sweep leaves behind for its user: `best.yml` and `index.html`."""

from __future__ import annotations

from pathlib import Path

from shoal.config.yaml_files import dump_yaml, schema_line
from shoal.reports.analysis import Analysis
from shoal.reports.answer import Answer, answer_of
from shoal.reports.page import page
from shoal.runs.atomic_files import replace_file


def write_answer(folder: Path) -> Analysis:
    """Write `best.yml`, if there is a best experiment, and the page, from what the sweep's folder holds now."""
    analysis = Analysis(folder)
    answer = answer_of(analysis)
    if answer.experiment is not None:
        replace_file(folder / "best.yml", best_yaml(answer).encode())
    replace_file(folder / "index.html", page(answer).encode())
    return analysis


def best_yaml(answer: Answer) -> str:
    """The best experiment as the text of a file, with a comment that says where it comes from."""
    assert answer.best is not None
    assert answer.experiment is not None
    tree = dict(answer.experiment)
    about = f"{answer.called(answer.best)} of {answer.analysis.folder.name}"
    score = f"{answer.analysis.sweep.metric} {answer.score(answer.best)}"
    command = dict(answer.commands)["train for longer"]
    comment = f"# The best of a sweep: {about}, {score}; here it trains for longer.\n# {command}\n"
    if answer.best.trials[0].exploits:
        comment += "# It copied other trials and changed its settings during training; these are its last.\n"
    return schema_line() + comment + dump_yaml({tree.pop("name"): tree})
