"""`shoal check`: an environment before node-hours are spent on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from shoal.cli.completion import environments
from shoal.cli.findings import tell, verdict_counts
from shoal.cli.options import Command, call_timeout_option, protocol_option, set_option, trust_option, wrap_option
from shoal.data.number_text import counted


@click.command(cls=Command)
@click.argument("env", metavar="[ENV|FILE]", required=False, shell_complete=environments)
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="YAML file with one or more experiments.")
@protocol_option
@wrap_option
@set_option("Set any key, e.g. env_config.size=5; repeatable.")
@click.option(
    "--episodes", type=click.IntRange(1), default=10, show_default=True, help="Number of episodes that a check plays."
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Number of steps after which an episode is cut off.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Seconds after which a check plays no further episode.",
)
@call_timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, for programs.")
@trust_option
def check(
    env: str | None,
    file: Path | None,
    protocol: str | None,
    wraps: tuple[str, ...],
    sets: tuple[str, ...],
    episodes: int,
    max_steps: int,
    budget: float,
    timeout: float,
    as_json: bool,
    trust: bool,
) -> None:
    """Check ENV (or the environments of a YAML FILE) as training will use it, and say what to do about each finding.

    It tries spaces and first steps, random and extreme actions, seeding, two environments at once, closing, making
    it in another process, leaks, and how long its calls take. All of it runs in a process of its own. The exit code is
    1 if a run would break.
    """
    from shoal.cli.train import argument_or_file, experiments_to_try
    from shoal.config.sections import RandomizeConfig
    from shoal.envs.examining import Wanted, examine
    from shoal.runs.folders import env_text

    env, file = argument_or_file(env, file)
    if env is None and file is None:
        raise click.UsageError("There is no environment to check; type e.g. `shoal check CartPole-v1`, or `-f FILE`.")
    experiments, user_code = experiments_to_try(env, file, protocol, wraps, sets, "shoal check", trust=trust)
    found: list[dict[str, str]] = []
    for experiment in experiments:
        config = experiment.config
        wanted = Wanted(
            config.env,
            dict(config.env_config),
            user_code,
            tuple(config.wrappers),
            config.preprocessor_pref,
            episodes,
            min(max_steps, config.horizon or max_steps),
            budget,
            timeout,
            config.env_ranks,
            config.randomize != RandomizeConfig(),
        )
        label = env_text(config.env)
        if not as_json:
            click.echo(f"Checking {label}")
        for finding in examine(wanted):
            found.append({"env": label, **asdict(finding)})
            if not as_json:
                tell(finding)
    _conclude(found, as_json)


def _conclude(found: list[dict[str, str]], as_json: bool) -> None:
    counts = verdict_counts(row["verdict"] for row in found)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif counts["problem"]:
        click.echo(f"{counted(counts['problem'], 'problem')}: a run would break.")
    elif counts["warning"]:
        click.echo(f"It can be trained; {counted(counts['warning'], 'warning')} to look at.")
    else:
        click.echo("It can be trained.")
    if counts["problem"]:
        raise SystemExit(1)
