"""Findings as a person reads them: a line each, with what to do below it."""

from __future__ import annotations

from collections.abc import Iterable

import click

from shoal.data.findings import Finding

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
"""Every verdict, the best first."""


def tell(finding: Finding, width: int = 16) -> None:
    """Print one finding; `width` is that of the column with the names of checks."""
    verdict = click.style(f"{finding.verdict:<8}", fg=COLOURS[finding.verdict])
    click.echo(f"{finding.check:<{width}}{verdict}{finding.text}")
    if finding.remedy:
        click.echo(f"{'':<{width + 8}}-> {finding.remedy}")


def verdict_counts(verdicts: Iterable[str]) -> dict[str, int]:
    """How many findings there are of each verdict."""
    counts = dict.fromkeys(COLOURS, 0)
    for verdict in verdicts:
        counts[verdict] += 1
    return counts
