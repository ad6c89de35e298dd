"""`shoal train` and `shoal resume`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.config.experiment import Experiment
    from shoal.runs.run import Run

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Workers(click.ParamType[int | str]):
    """A number of workers, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """See `click.ParamType`."""
        return "auto" if value == "auto" else int(click.IntRange(0).convert(value, param, ctx))


@click.command()
@click.argument("env", required=False)
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="YAML file with one or more experiments.")
@click.option("--run", "run_name", metavar="ALGORITHM", help="Algorithm: PPO, TRPO or DQN.")
@click.option("--env", "env_option", metavar="ENV", help="The environment; the same as the argument.")
@click.option("--num-workers", type=Workers(), help="Processes that sample; 0: none but this one; auto: all cores.")
@click.option("--num-cpus", type=click.IntRange(1), help="Cores to use in all.")
@click.option("--num-gpus", type=click.FloatRange(0), help="GPUs for learning.")
@click.option("--local-mode", is_flag=True, help="Everything in this process; the same as --num-workers 0.")
@click.option("--stop", multiple=True, metavar="NAME=LIMIT", help="End when a result reaches its limit; repeatable.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key, e.g. config.lr=1e-3; repeatable.")
@click.option("--seed", type=int, help="Seed of everything random.")
@click.option("--name", help="Name of the experiment, and the folder of its runs.")
@click.option("--results-dir", metavar="FOLDER", help="Where runs are kept; ~ and $VAR are expanded.")
@click.option("--checkpoint-freq", type=click.IntRange(0), help="Iterations between checkpoints; 0: none on the way.")
@click.option("--checkpoint-at-end/--no-checkpoint-at-end", default=None, help="Whether the end is a checkpoint.")
@click.option("--new", is_flag=True, help="Start a new run even if there is one to continue.")
@click.option("--dry-run", is_flag=True, help="Print the resolved config and stop.")
@click.option("--quiet", is_flag=True, help="Print only the start and the end.")
@click.option("--ray-address", metavar="HOST:PORT", help="A running Ray cluster for the workers.")
def train(
    env: str | None,
    file: Path | None,
    run_name: str | None,
    env_option: str | None,
    num_workers: int | str | None,
    num_cpus: int | None,
    num_gpus: float | None,
    local_mode: bool,
    stop: tuple[str, ...],
    sets: tuple[str, ...],
    seed: int | None,
    name: str | None,
    results_dir: str | None,
    checkpoint_freq: int | None,
    checkpoint_at_end: bool | None,
    new: bool,
    dry_run: bool,
    quiet: bool,
    ray_address: str | None,
) -> None:
    """Train an agent on ENV (an id, module:Class or file.py:Class), or the experiments of a YAML file.

    The same command continues a run that was interrupted. Flags go before what the file says; --stop takes the place of
    all the file's criteria.
    """
    if env is not None and env_option is not None:
        raise click.UsageError(f"The environment is given twice, as {env} and as --env {env_option}; leave one out.")
    env = env or env_option
    if env is None and file is None:
        raise click.UsageError("There is nothing to train on; type e.g. `shoal train CartPole-v1`, or `-f FILE`.")
    if local_mode and num_workers:
        raise click.UsageError(f"--local-mode means no workers, but --num-workers is {num_workers}; leave one out.")
    from shoal.config.overrides import parse_override

    flags = {
        "env": env,
        "run": run_name,
        "config.num_workers": 0 if local_mode else num_workers,
        "config.num_gpus": num_gpus,
        "stop": limits(stop) if stop else None,
        "config.seed": seed,
        "name": name,
        "results_dir": results_dir,
        "checkpoint_freq": checkpoint_freq,
        "checkpoint_at_end": checkpoint_at_end,
    }
    overrides = [(key, value) for key, value in flags.items() if value is not None]
    overrides += [parse_override(text) for text in sets]
    experiments = [_with_workers(experiment, num_cpus) for experiment in _experiments(file, overrides)]
    for experiment in experiments:
        _check_resources(experiment, num_cpus, ray_address)
    search_path = [file.parent] if file is not None else []
    if dry_run or len(experiments) > 1:
        from shoal.runs.run import checked

        # What is wrong with the last experiment is told before the first one trains.
        resolved = [checked(experiment, search_path) for experiment in experiments]
    if dry_run:
        from shoal.config.experiment import experiment_yaml

        click.echo("\n".join(experiment_yaml(experiment).rstrip() for experiment, _ in resolved))
        return
    if num_cpus is not None:
        _limit_threads(experiments, num_cpus)
    if ray_address is not None:
        os.environ["RAY_ADDRESS"] = ray_address
    from shoal.runs.run import Run

    for experiment in experiments:
        follow(Run.open(experiment, new, search_path), quiet)


@click.command()
@click.argument("run_folder", metavar="RUN")
@click.option("--stop", multiple=True, metavar="NAME=LIMIT", help="New criteria in place of the run's own; repeatable.")
@click.option("--quiet", is_flag=True, help="Print only the start and the end.")
def resume(run_folder: str, stop: tuple[str, ...], quiet: bool) -> None:
    """Continue RUN (the folder of a run, or of an experiment: its newest run) from its newest good checkpoint."""
    overrides = {"stop": limits(stop)} if stop else {}
    from shoal.runs.run import Run

    follow(Run.resume(run_folder, overrides), quiet)


def limits(texts: tuple[str, ...]) -> dict[str, Any]:
    """`--stop timesteps_total=100000` as criteria."""
    from shoal.config.yaml_files import parse_value

    found: dict[str, Any] = {}
    problems = []
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name or not value.strip():
            problems.append(f"--stop {text}: write NAME=LIMIT, e.g. --stop timesteps_total=100000")
        elif name in found:
            problems.append(f"--stop {name}: is given twice; leave one out")
        else:
            found[name] = parse_value(value)
    if problems:
        raise ConfigError(problems)
    return found


def follow(run: Run, quiet: bool) -> None:
    """Train a run before the user's eyes; the process ends here if a signal ended it."""
    from shoal.cli.live import open_view
    from shoal.runs.folders import env_label

    for note in run.notes:
        click.echo(note)
    if run.done is not None:
        click.echo(f"{run.folder} is finished: {run.done}.")
        click.echo(f"For another run use `shoal train` with --new; to go on with this one: {_further(run)}")
        return
    experiment = run.experiment
    title = f"{experiment.run} {env_label(experiment.config.env)}"
    if run.resumed_from is not None:
        click.echo(f"{title} goes on from {run.resumed_from}")
    else:
        click.echo(f"{title} in {run.folder}")
    sys.stdout.flush()
    try:
        with open_view(title, run.folder, experiment.stop, quiet, experiment.config.log_level) as view:
            for result in run.results(hold_signals=True):
                view.show(result)
    finally:
        _tell_end(run)
    if run.outcome is not None and run.outcome.signal is not None:
        from shoal.runs.interrupts import exit_code

        sys.exit(exit_code(run.outcome.signal))


def _tell_end(run: Run) -> None:
    if run.outcome is None:
        return
    words = {"stopped": "Finished", "interrupted": "Stopped", "failed": "Failed"}[run.outcome.kind]
    click.echo(f"{words}: {run.outcome.sentence.splitlines()[0]}")
    click.echo(f"  run       {run.folder}")
    if run.last_checkpoint is None:
        why = "checkpoints are switched off" if run.outcome.kind == "stopped" else "no iteration was finished"
        click.echo(f"  nothing is saved, because {why}")
        return
    folder = shlex.quote(str(run.folder))
    click.echo(f"  saved     {run.last_checkpoint.name}")
    click.echo(f"  evaluate  shoal evaluate {folder}")
    click.echo(f"  go on     {_further(run) if run.outcome.kind == 'stopped' else f'shoal resume {folder}'}")


def _further(run: Run) -> str:
    """A command that trains a finished run for as long again."""
    from shoal.runs.checkpoints import newest_summary

    steps = (newest_summary(run.folder) or {}).get("timesteps_total", 50_000)
    return f"shoal resume {shlex.quote(str(run.folder))} --stop timesteps_total={2 * int(steps)}"


def _experiments(file: Path | None, overrides: list[tuple[str, Any]]) -> list[Experiment]:
    from shoal.config.experiment import experiment_from, experiments_from_file

    if file is None:
        from shoal.runs.folders import env_label

        env = dict(overrides)["env"]
        return [experiment_from({"name": env_label(env)}, overrides)]
    experiments = experiments_from_file(file, overrides)
    names = [experiment.name for experiment in experiments]
    if len(set(names)) < len(names):
        raise click.UsageError(f"--name gives {len(names)} experiments of {file} one name; leave it out.")
    return experiments


def _with_workers(experiment: Experiment, num_cpus: int | None) -> Experiment:
    """The experiment with `num_workers: auto` resolved, if the cores to use are given."""
    config = experiment.config
    if num_cpus is None or config.num_workers != "auto":
        return experiment
    count = max(1, int((num_cpus - 1) / max(config.num_cpus_per_worker, 1e-3)))
    return experiment.model_copy(update={"config": config.model_copy(update={"num_workers": count})})


def _check_resources(experiment: Experiment, num_cpus: int | None, ray_address: str | None) -> None:
    config = experiment.config
    if ray_address is not None and config.num_workers == 0:
        raise ConfigError("--ray-address: nothing runs on Ray without workers; add --num-workers N, or leave it out")
    if num_cpus is None:
        return
    needed = config.worker_count * config.num_cpus_per_worker + 1
    if needed > num_cpus:
        most = int((num_cpus - 1) / config.num_cpus_per_worker) if config.num_cpus_per_worker else num_cpus
        raise ConfigError(
            f"--num-cpus: {config.num_workers} workers of {config.num_cpus_per_worker:g} cores and the learner need "
            f"{needed:g} (got {num_cpus}); give more, or --num-workers {most}"
        )
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if ray_address is None and num_cpus > here:
        raise ConfigError(f"--num-cpus: this machine gives {here} (got {num_cpus})")


def _limit_threads(experiments: list[Experiment], num_cpus: int) -> None:
    """Leave the learner the cores that the workers do not take."""
    taken = max(experiment.config.worker_count * experiment.config.num_cpus_per_worker for experiment in experiments)
    threads = max(1, int(num_cpus - taken))
    # Read when NumPy and PyTorch are imported, here and in every process that is started from here.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
