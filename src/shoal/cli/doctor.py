"""`shoal doctor`: what would break here, or on the hosts of a job, before any node-hour is spent."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.launch import SchedulerName, named_hosts, seconds_of
from shoal.machine.terminal import is_terminal

if TYPE_CHECKING:
    from shoal.cluster.doctor import CheckRow
    from shoal.cluster.host_checks import Verdict

STYLES: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "bad": "bold red"}


@click.command()
@click.option("--hosts", metavar="N1,N2", help="Hosts to check over ssh; ranges such as n[1-32] are expanded.")
@click.option("--hostfile", type=click.Path(path_type=Path), help="A file with a host on each line.")
@click.option(
    "--scheduler",
    type=SchedulerName(),
    help="Scheduler of this job, if it is not detected; none: check this machine alone.",
)
@click.option("--timeout", default="60s", show_default=True, help="How long hosts may take to answer, e.g. 90s.")
@click.option("--json", "as_json", is_flag=True, help="Print every fact and finding as JSON.")
def doctor(hosts: str | None, hostfile: Path | None, scheduler: str | None, timeout: str, as_json: bool) -> None:
    """Check for what would break a cluster, on this machine or on every host of the current job.

    The exit code is 1 if something would break.
    """
    from shoal.cluster.doctor import rows
    from shoal.cluster.remote_facts import facts_of_hosts

    all_facts = facts_of_hosts(named_hosts(hosts, hostfile), scheduler, os.environ, seconds_of("--timeout", timeout))
    made = rows(all_facts)
    if as_json:
        _print_json(all_facts, made)
    elif is_terminal():
        _print_table(made, len(all_facts))
    else:
        _print_plain(made, len(all_facts))
    if any(row.verdict == "bad" for row in made):
        sys.exit(1)


def summary(made: Sequence[CheckRow], num_hosts: int) -> str:
    """The verdict in one line."""
    bad, warned = ([row.check for row in made if row.verdict == verdict] for verdict in ("bad", "warn"))
    parts = [f"{len(bad)} must be fixed: {', '.join(bad)}"] if bad else []
    parts += [f"{len(warned)} worth a look: {', '.join(warned)}"] if warned else []
    return f"{len(made)} checks on {num_hosts} host{'s' * (num_hosts > 1)}: {'; '.join(parts) or 'no problems'}."


def _lines(made: Sequence[CheckRow], num_hosts: int) -> list[tuple[Verdict, str, str]]:
    """Verdict, check and text of each line; a lone host needs no name."""
    return [
        (verdict, row.check, detail if num_hosts == 1 else f"{hosts}: {detail}")
        for row in made
        for verdict, hosts, detail in row.lines()
    ]


def _print_plain(made: Sequence[CheckRow], num_hosts: int) -> None:
    width = max(len(row.check) for row in made)
    for verdict, check, text in _lines(made, num_hosts):
        click.echo(f"{verdict:<4}  {check:<{width}}  {text}")
    click.echo(f"\n{summary(made, num_hosts)}")
    for row in made:
        for remedy in row.remedies:
            click.echo(f"  {row.check}: {remedy}")


def _print_table(made: Sequence[CheckRow], num_hosts: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for verdict, check, text in _lines(made, num_hosts):
        table.add_row(Text(verdict, style=STYLES[verdict]), check, Text(text))
    console.print(table)
    console.print(Text(f"\n{summary(made, num_hosts)}", style="bold"))
    for row in made:
        for remedy in row.remedies:
            # Not wrapped by us, so that what is to be typed can be marked and copied.
            console.print(Text.assemble((f"  {row.check}: ", "cyan"), remedy), soft_wrap=True)


def _print_json(all_facts: Mapping[str, Mapping[str, Any]], made: Sequence[CheckRow]) -> None:
    import dataclasses
    import json

    told = [
        {
            "check": row.check,
            "verdict": row.verdict,
            "findings": {host: dataclasses.asdict(finding) for host, finding in row.findings.items()},
        }
        for row in made
    ]
    click.echo(json.dumps({"rows": told, "facts": all_facts}, indent=2))
