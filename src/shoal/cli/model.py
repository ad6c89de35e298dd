"""`shoal model`."""

from __future__ import annotations

import click

from shoal.cli.completion import runs
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path


@click.command(cls=Command)
@click.argument("path", metavar="RUN|CHECKPOINT|NAME", shell_complete=runs)
@where_option()
@trust_option
def model(path: str, results_dir: str | None, trust: bool) -> None:
    """Show the network of a trained agent: its layers, their shapes, and how many parameters they have."""
    from shoal.cli.run_names import found_run
    from shoal.runs.loaded_policy import find_checkpoint, policy_of

    checkpoint = find_checkpoint(found_run(path, results_dir))
    policy = policy_of(checkpoint, trust=trust)
    click.echo(short_path(checkpoint.path))
    click.echo(f"observations  {policy.obs_spec.space}")
    click.echo(f"actions       {policy.action_spec.space}")
    click.echo(policy.network.summary())
