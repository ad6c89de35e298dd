"""`shoal tune`: a sweep from a file, from its first look without Ray to its end."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import Command, asked_preset, preset_option, set_option, stop_option, trust_option
from shoal.cli.train import argument_or_file, check_file, limits
from shoal.cli.walltimes import deadline_of, walltime_option
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.config.sweep import MethodChoice, Sweep
    from shoal.envs.importing import UserCode
    from shoal.machine.deadlines import Deadline
    from shoal.reports.records import Event
    from shoal.tune.sweep_run import SweepRun

NUM_EXAMPLES = 3


@click.command(cls=Command)
@click.argument("argument", metavar="[FILE]", required=False, type=click.Path())
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="YAML file with one or more sweeps.")
@preset_option
@click.option("--num-samples", type=click.IntRange(1), help="Number of trials to draw (for each point of the grids).")
@click.option("--metric", metavar="NAME", help="Result by which trials are ranked; needs --mode.")
@click.option(
    "--mode", type=click.Choice(["max", "min"]), help="Whether the largest or the smallest value is the best."
)
@click.option(
    "--scheduler", metavar="NAME", help="Scheduler of the trials: fifo, asha, hyperband, median, pbt, pb2 or bohb."
)
@click.option(
    "--search", metavar="NAME", help="Search algorithm: random, optuna, hyperopt, bayesopt, bohb, nevergrad or ax."
)
@click.option("--max-concurrent", type=click.IntRange(1), help="Maximum number of trials at the same time.")
@click.option(
    "--seeds", type=click.IntRange(1), help="Number of seeds for each configuration, which is ranked by its mean."
)
@stop_option("Stop a trial when a result reaches its limit; repeatable.")
@set_option("Set any key to a value or a search; repeatable.")
@click.option("--name", help="Name of the sweep, and of its folder.")
@click.option("--results-dir", metavar="FOLDER", help="Folder of all sweeps; ~ and $VAR are expanded.")
@click.option("--new", is_flag=True, help="Start a new sweep even if there is one to continue.")
@click.option("--resume", "resumed", metavar="NAME|FOLDER", help="Continue a sweep, without its file.")
@click.option("--dry-run", is_flag=True, help="Print what would be tried, and stop.")
@trust_option
@walltime_option
@click.option("--quiet", is_flag=True, help="Print only the start and the end.")
@click.option("--ray-address", metavar="HOST:PORT|auto", help="Address of a running Ray cluster for the trials.")
@click.option("--num-cpus", type=click.IntRange(1), help="Total number of cores to use.")
def tune(
    argument: str | None,
    file: Path | None,
    preset: str | None,
    num_samples: int | None,
    metric: str | None,
    mode: str | None,
    scheduler: str | None,
    search: str | None,
    max_concurrent: int | None,
    seeds: int | None,
    stop: tuple[str, ...],
    sets: tuple[str, ...],
    name: str | None,
    results_dir: str | None,
    new: bool,
    resumed: str | None,
    dry_run: bool,
    trust: bool,
    walltime: str | None,
    quiet: bool,
    ray_address: str | None,
    num_cpus: int | None,
) -> None:
    """Search for the best settings: many runs of the experiment in a YAML file, with searches in place of values.

    In the file, write lr: {loguniform: [1e-5, 1e-2]} or {grid_search: [1e-3, 1e-4]} for the value, and num_samples,
    metric, mode, scheduler, search_alg or seeds beside stop. The same command continues a sweep that was interrupted.
    """
    argument, file = argument_or_file(argument, file)
    if argument is not None:
        raise click.UsageError(
            f"A sweep needs a YAML file; type `shoal tune FILE.yml` (got {argument}), or `shoal train {argument}`."
        )
    from shoal.config.overrides import parse_override

    flags = {
        "preset": asked_preset(preset, file or resumed, "shoal tune"),
        "num_samples": num_samples,
        "metric": metric,
        "mode": mode,
        "scheduler": scheduler,
        "search_alg": search,
        "max_concurrent_trials": max_concurrent,
        "seeds": seeds,
        "stop": limits(stop) if stop else None,
        "name": name,
        "results_dir": results_dir,
    }
    overrides = [(key, value) for key, value in flags.items() if value is not None]
    overrides += [parse_override(text) for text in sets]
    _check_cores(num_cpus, ray_address)
    if resumed is not None:
        _check_alone(file, [key for key, _ in overrides if key != "results_dir"], new, dry_run)
        _use(ray_address)
        from shoal.tune.sweep_run import SweepRun

        follow(SweepRun.resume(resumed, results_dir, num_cpus, trust), quiet, deadline_of(walltime))
        return
    if file is None:
        raise click.UsageError("There is no sweep to run; type `shoal tune -f FILE`, or `shoal tune --resume NAME`.")
    from shoal.config.sweep import sweeps_from_file

    check_file(file, trust)
    sweeps = sweeps_from_file(file, overrides)
    if len({sweep.name for sweep in sweeps}) < len(sweeps):
        raise click.UsageError(f"--name gives all {len(sweeps)} sweeps of {file} the same name; leave it out.")
    from shoal.envs.importing import UserCode

    user_code = UserCode.at(file.parent)
    for note in _check_environments(sweeps, user_code):
        click.echo(note, err=dry_run)
    if dry_run:
        click.echo("\n\n".join(described(sweep) for sweep in sweeps))
        return
    _use(ray_address)
    from shoal.tune.sweep_run import SweepRun

    deadline = deadline_of(walltime)
    for sweep in sweeps:
        follow(SweepRun.open(sweep, new, user_code, num_cpus=num_cpus, trust=trust), quiet, deadline)


def follow(run: SweepRun, quiet: bool, deadline: Deadline | None = None) -> None:
    """Run a sweep before the user's eyes; the process ends here if a signal ended it."""
    from shoal.cli.output import guard_streams, report_lost_streams
    from shoal.cli.tune_view import open_tune_view, tell_end
    from shoal.runs.walltime import Walltime

    streams = guard_streams()
    is_done = run.done is not None
    if is_done:
        click.echo(f"{run.folder} is finished: {run.done}. To start another one, add --new.")
    analysis = None
    try:
        with open_tune_view(run, quiet or is_done) as view, Walltime(deadline):

            def show(event: Event) -> None:
                view.show(event)
                streams[:] = report_lost_streams(streams)

            analysis = run.run(show)
    finally:
        tell_end(run, analysis)
    if run.outcome is not None and run.outcome.signal is not None:
        from shoal.machine.signals import exit_code

        sys.exit(exit_code(run.outcome.signal))


def described(sweep: Sweep) -> str:
    """What a sweep would try: how many trials, its settings, examples of them, and the first experiment in full."""
    from shoal.config.experiment import experiment_yaml
    from shoal.config.search_spaces import setting_text
    from shoal.config.sweep import experiment_with, trial_count
    from shoal.reports.labels import value_text

    count = trial_count(sweep)
    rows = [(setting.path, setting_text(setting)) for setting in sweep.settings]
    rows += [("num_samples", str(sweep.num_samples)), ("search_alg", _choice_text(sweep.search_alg))]
    rows += [("scheduler", _choice_text(sweep.scheduler))]
    rows += [("seeds", str(sweep.seeds))] * (sweep.seeds > 1)
    rows += [("best", f"the {'largest' if sweep.mode == 'max' else 'smallest'} {sweep.metric}")]
    width = max(len(key) for key, _ in rows)
    lines = [f"{sweep.name}: {count} trial{'s' * (count > 1)}", *(f"  {key:{width}}  {words}" for key, words in rows)]
    examples = _examples(sweep)
    if any(examples):
        lines.append("for example")
        lines += ["  " + ", ".join(f"{path} {value_text(value)}" for path, value in one.items()) for one in examples]
    lines.append("the first of them in full")
    text = experiment_yaml(experiment_with(sweep, examples[0], None)).rstrip()
    return "\n".join([*lines, *("  " + line for line in text.splitlines())])


def _examples(sweep: Sweep) -> list[dict[str, Any]]:
    """Settings of a few trials: the first points of the grids, with draws of the rest."""
    import itertools

    from shoal.config.search_spaces import drawn
    from shoal.config.sweep import trial_count

    chance = random.Random(0)
    grids = [setting for setting in sweep.settings if setting.kind == "grid_search"]
    points = itertools.cycle(itertools.islice(itertools.product(*(grid.args for grid in grids)), NUM_EXAMPLES))
    found: list[dict[str, Any]] = []
    for _ in range(min(NUM_EXAMPLES, trial_count(sweep) // sweep.seeds)):
        values = dict(zip((grid.path for grid in grids), next(points), strict=True))
        others = {s.path: drawn(s, chance) for s in sweep.settings if s.path not in values}
        found.append({s.path: {**values, **others}[s.path] for s in sweep.settings})
    return found


def _choice_text(chosen: MethodChoice) -> str:
    options = ", ".join(f"{key} {value}" for key, value in chosen.options.items())
    return f"{chosen.type} ({options})" if options else chosen.type


def _check_environments(sweeps: list[Sweep], user_code: UserCode) -> list[str]:
    """Find what is wrong with an environment before Ray is started, and what to tell of presets.

    It is the environment of the first trial.
    """
    from shoal.config.sweep import experiment_with
    from shoal.runs.preset_notes import preset_note
    from shoal.runs.run import checked

    experiments = [experiment_with(sweep, _examples(sweep)[0], None) for sweep in sweeps]
    for experiment in experiments:
        checked(experiment, user_code)
    notes = [preset_note(experiment) for experiment in experiments]
    return [note for note in notes if note is not None]


def _check_cores(num_cpus: int | None, ray_address: str | None) -> None:
    if num_cpus is None:
        return
    if ray_address is not None:
        raise ConfigError("--num-cpus: a running cluster has its own cores; leave it out")
    from shoal.machine.cores import cores

    here = cores()
    if num_cpus > here:
        raise ConfigError(f"--num-cpus: this machine has {here} (got {num_cpus}); use {here}, or leave it out")


def _check_alone(file: Path | None, changes: list[str], new: bool, dry_run: bool) -> None:
    """A sweep that goes on is what it was."""
    given = ["-f"] * (file is not None) + ["--new"] * new + ["--dry-run"] * dry_run + changes
    if given:
        raise click.UsageError(f"--resume continues the sweep as it was; leave {', '.join(given)} out.")


def _use(ray_address: str | None) -> None:
    if ray_address is not None:
        os.environ["RAY_ADDRESS"] = ray_address
