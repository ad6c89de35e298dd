"""`shoal model`."""

from __future__ import annotations

import click


@click.command()
@click.argument("path", metavar="RUN_OR_CHECKPOINT")
def model(path: str) -> None:
    """Show the network of a trained agent: its layers, their shapes, and how many parameters they have."""
    from shoal.runs.policies import Policy, find_checkpoint

    checkpoint = find_checkpoint(path)
    policy = Policy.of(checkpoint)
    click.echo(checkpoint.path)
    click.echo(f"observations  {policy.obs_spec.space}")
    click.echo(f"actions       {policy.action_spec.space}")
    click.echo(str(policy.model.summary()))
