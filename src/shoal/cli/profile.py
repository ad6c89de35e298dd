"""`shoal profile`: where the time will go, before it is spent, and afterwards whether it went there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import algorithms, environments
from shoal.cli.options import (
    Command,
    call_timeout_option,
    protocol_option,
    set_option,
    trust_option,
    where_option,
    wrap_option,
)

if TYPE_CHECKING:
    from shoal.config.settings import AlgorithmConfig
    from shoal.data.throughput import Costs
    from shoal.envs.importing import UserCode


@click.command(cls=Command)
@click.argument("env", metavar="[ENV|FILE|RUN]", required=False, shell_complete=environments)
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="YAML file with one or more experiments.")
@click.option("--run", "run_name", metavar="ALGORITHM", shell_complete=algorithms, help="Algorithm; default: PPO.")
@protocol_option
@wrap_option
@set_option("Set any key, e.g. num_envs_per_worker=16; repeatable.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=10.0,
    show_default=True,
    help="Seconds to measure for, about; a slow environment takes at least a few steps.",
)
@call_timeout_option
@click.option(
    "--max-workers", type=click.IntRange(1), default=256, show_default=True, help="Largest number of workers to show."
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes to recommend settings for.")
@click.option("--cores-per-node", type=click.IntRange(1), help="Cores of each node; default: those of this machine.")
@click.option(
    "--steps",
    type=click.FloatRange(1),
    default=1e6,
    show_default=True,
    help="Environment steps whose node-hours are given.",
)
@click.option(
    "--with-workers", is_flag=True, help="Start Ray and two workers to measure their messages, too; takes 10 s more."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@where_option()
@trust_option
def profile(
    env: str | None,
    file: Path | None,
    run_name: str | None,
    protocol: str | None,
    wraps: tuple[str, ...],
    sets: tuple[str, ...],
    seconds: float,
    timeout: float,
    max_workers: int,
    nodes: int,
    cores_per_node: int | None,
    steps: float,
    with_workers: bool,
    as_json: bool,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Measure ENV, its policy and its learner for some seconds, and predict steps/s for any number of workers.

    It says what an iteration's time is spent on, from how many workers on the learner is the limit, which settings are
    fastest, and how many node-hours they take. Of a RUN (a folder, or the NAME of an experiment) it shows what is
    predicted beside what its results say. The environment runs in a process of its own.
    """
    from shoal.cli.profile_view import comparison_tree, forecast_tree, show_comparison, show_forecast
    from shoal.cli.train import argument_or_file, experiments_to_try
    from shoal.machine.cores import cores
    from shoal.machine.memory import total_memory
    from shoal.runs.forecast import Hosts
    from shoal.runs.measuring import ProfileBudget

    env, file = argument_or_file(env, file)
    if env is None and file is None:
        raise click.UsageError("There is nothing to profile; type e.g. `shoal profile CartPole-v1`, or `-f FILE`.")
    hosts = Hosts(nodes, cores_per_node or cores(), total_memory())
    measuring = _Measuring(ProfileBudget(seconds, with_others=True), timeout, with_workers, not as_json)
    run = None if env is None or protocol is not None else _run_of(env, results_dir, not as_json)
    if run is not None:
        from shoal.reports.run_facts import facts_of
        from shoal.runs.resuming import experiment_to_run, stored_tree

        facts = facts_of(run)
        experiment, user_code = experiment_to_run(stored_tree(run) or {}, run, trust)
        costs = measuring.costs(experiment.config, user_code.with_working_folder())
        if as_json:
            click.echo(json.dumps(comparison_tree(facts, costs, hosts), indent=1))
        else:
            show_comparison(facts, costs, hosts)
        return
    experiments, user_code = experiments_to_try(env, file, protocol, wraps, sets, "shoal profile", run_name, trust)
    trees = []
    for experiment in experiments:
        costs = measuring.costs(experiment.config, user_code)
        if as_json:
            trees.append(
                {"name": experiment.name, **forecast_tree(experiment.config, costs, hosts, max_workers, steps)}
            )
        else:
            show_forecast(experiment, costs, hosts, max_workers, steps)
    if as_json:
        click.echo(json.dumps(trees if file else trees[0], indent=1))


class _Measuring:
    """How configurations are measured."""

    def __init__(self, budget: Any, timeout_s: float, with_workers: bool, tells: bool) -> None:
        self._budget, self._timeout_s = budget, timeout_s
        self._with_workers, self._tells = with_workers, tells

    def costs(self, config: AlgorithmConfig, user_code: UserCode) -> Costs:
        """The costs of a configuration, with a line that says that they are being measured."""
        from shoal.envs.making import maker_of
        from shoal.errors import ConfigError
        from shoal.runs.folders import env_text
        from shoal.runs.profiling import measured_costs

        if config.learns_offline:
            raise ConfigError("run: there is no sampling to measure where recorded steps are learned from")
        maker = maker_of(config, user_code)
        if self._tells:
            click.echo(f"Measuring {env_text(config.env)} for about {self._budget.seconds:g} s", err=True)
        costs = measured_costs(config, maker, self._budget, self._timeout_s)
        if not self._with_workers:
            return costs
        from shoal.runs.message_costs import with_measured_messages

        if self._tells:
            click.echo("Measuring the messages of two workers on Ray", err=True)
        return with_measured_messages(costs, config, maker)


def _run_of(text: str, results_dir: str | None, tells: bool) -> Path | None:
    """The run that a text means: a folder is one, and a name if it is no environment; None: it is an environment."""
    from shoal.cli.run_names import found_run
    from shoal.errors import ConfigError
    from shoal.runs.folders import find_run

    if Path(text).expanduser().is_dir():
        return find_run(found_run(text, results_dir, is_trained=False, tells=tells))
    if text.endswith((".py", ".fmu")):
        return None
    from shoal.envs.importing import UserCode
    from shoal.envs.making import env_maker

    try:
        env_maker(text, UserCode.at("."), ())
    except ConfigError:
        try:
            return find_run(found_run(text, results_dir, is_trained=False, tells=tells))
        except ConfigError:
            return None
    return None
