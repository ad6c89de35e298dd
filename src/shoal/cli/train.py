"""`shoal train` and `shoal resume`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import algorithms, environments, runs
from shoal.cli.options import (
    Command,
    asked_preset,
    preset_option,
    protocol_option,
    set_option,
    stop_option,
    trust_option,
    where_option,
    wrap_option,
)
from shoal.cli.walltimes import deadline_of, walltime_option
from shoal.config.algorithms import BUILT_IN
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.config.experiment import Experiment
    from shoal.envs.importing import UserCode

FEW = 10  # experiments, up to which each is written by itself
ALGORITHM_HELP = f"Algorithm: {', '.join(BUILT_IN)}, or one that `shoal algorithms` lists."


class WorkerCount(click.ParamType[int | str]):
    """A number of workers, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """See `click.ParamType`."""
        if value == "auto":
            return "auto"
        try:
            return int(click.IntRange(0).convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"must be a number, 0 or more, or auto (got {value!r}).", param, ctx)


class TrainCommand(Command):
    """`shoal train`, which takes one environment."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; a second environment is answered with the way to train several."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            extra = re.match(r"Got unexpected extra arguments? \((.*)\)", error.message)
            if extra is None:
                raise
            raise click.UsageError(
                f"Only one environment is trained at a time (got {extra[1]} too); to train several, write a YAML file "
                "of experiments: shoal train FILE.yml",
                ctx,
            ) from None


@click.command(cls=TrainCommand)
@click.argument("env", metavar="[ENV|FILE]", required=False, shell_complete=environments)
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="YAML file with one or more experiments.")
@click.option("--run", "run_name", metavar="ALGORITHM", shell_complete=algorithms, help=ALGORITHM_HELP)
@click.option(
    "--env", "env_option", metavar="ENV", shell_complete=environments, help="The environment; the same as the argument."
)
@preset_option
@protocol_option
@wrap_option
@click.option(
    "--num-workers",
    type=WorkerCount(),
    help="Number of sampling processes; 0: only this one; auto: what is fastest.",
)
@click.option(
    "--num-cpus",
    type=click.IntRange(0),
    help="Total number of cores. Without num_workers: this process and N-1 workers; 0 and 1: no workers.",
)
@click.option("--num-gpus", type=click.FloatRange(0), help="Number of GPUs for learning.")
@click.option("--local-mode", is_flag=True, help="Run everything in this process; the same as --num-workers 0.")
@stop_option("Stop when a result reaches its limit; repeatable.")
@set_option("Set any key, e.g. config.lr=1e-3, or lr=1e-3; repeatable.")
@click.option(
    "--restore",
    metavar="RUN|CHECKPOINT|NAME",
    shell_complete=runs,
    help="Start a new run with the weights, observation filter and reward scale of another; other settings may differ.",
)
@click.option("--seed", type=int, help="Seed of all random numbers.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Number of runs with seeds that follow --seed, trained together where that is faster.",
)
@click.option("--name", help="Name of the experiment, and the folder of its runs.")
@click.option("--results-dir", metavar="FOLDER", help="Folder of all runs; ~ and $VAR are expanded.")
@click.option(
    "--checkpoint-freq",
    type=click.IntRange(0),
    help="Number of iterations between checkpoints; 0: none during the run.",
)
@click.option(
    "--checkpoint-at-end/--no-checkpoint-at-end",
    default=None,
    help="Save a checkpoint when the run ends, which is the default, or not.",
)
@walltime_option
@click.option("--new", is_flag=True, help="Start a new run even if there is one to continue.")
@click.option("--with-code", is_flag=True, help="Keep a copy of your own code in the run's folder, for reproduction.")
@click.option("--dry-run", is_flag=True, help="Print the resolved config and stop.")
@trust_option
@click.option("--quiet", is_flag=True, help="Print only the start and the end.")
@click.option("--ray-address", metavar="HOST:PORT|auto", help="Address of a running Ray cluster for the workers.")
def train(
    env: str | None,
    file: Path | None,
    run_name: str | None,
    env_option: str | None,
    preset: str | None,
    protocol: str | None,
    wraps: tuple[str, ...],
    num_workers: int | str | None,
    num_cpus: int | None,
    num_gpus: float | None,
    local_mode: bool,
    stop: tuple[str, ...],
    sets: tuple[str, ...],
    restore: str | None,
    seed: int | None,
    seeds: int | None,
    name: str | None,
    results_dir: str | None,
    checkpoint_freq: int | None,
    checkpoint_at_end: bool | None,
    walltime: str | None,
    new: bool,
    with_code: bool,
    dry_run: bool,
    trust: bool,
    quiet: bool,
    ray_address: str | None,
) -> None:
    """Train an agent on ENV (an id, module:Class, file.py or file.py:Class), or the experiments of a YAML FILE.

    The same command continues a run that was interrupted. Flags override the file's keys; --stop replaces all of the
    file's criteria, --wrap all of its wrappers.
    """
    env, file = argument_or_file(env, file)
    env = _environment(env, env_option)
    own_preset = asked_preset(preset, env or file, "shoal train")
    _check_given(env, file, run_name)
    from shoal.config.wrappers import parse_wrap

    flags: dict[str, Any] = {
        "env": env_of(env, protocol, "shoal train"),
        "run": run_name,
        "preset": own_preset,
        "config.wrappers": [parse_wrap(text) for text in wraps] or None,
        "config.num_workers": _num_workers(num_workers, local_mode),
        "config.num_gpus": num_gpus,
        "stop": limits(stop) if stop else None,
        "restore": restore,
        "config.seed": seed,
        "name": name,
        "results_dir": results_dir,
        "checkpoint_freq": checkpoint_freq,
        "checkpoint_at_end": checkpoint_at_end,
    }
    overrides = _overrides(flags, sets)
    num_cpus = None if num_cpus is None else max(num_cpus, 1)  # 0 as in `simple_trainer.py --num-cpus 0`: this process
    experiments = _that_fit(experiments_of(file, overrides, trust), num_cpus, ray_address)
    from shoal.envs.importing import INSTALLED, UserCode

    user_code = UserCode.at(file.parent) if file is not None else INSTALLED
    if dry_run or len(experiments) > 1:
        from shoal.runs.run import checked

        # What is wrong with the last experiment is told before the first one trains.
        resolved = [checked(experiment, user_code) for experiment in experiments]
    if dry_run:
        _show([experiment for experiment, _ in resolved], seeds or 1)
        return
    if num_cpus is not None:
        _limit_threads(experiments, num_cpus)
    if ray_address is not None:
        os.environ["RAY_ADDRESS"] = ray_address
    from shoal.cli.run_view import follow
    from shoal.runs.run import Run

    deadline = deadline_of(walltime)
    for number, experiment in enumerate(experiments, 1):
        seeded = with_seeds(experiment, seeds or 1)
        if len(seeded) > 1:
            from shoal.cli.seeds_view import follow_seeds

            follow_seeds(seeded, new=new, user_code=user_code, with_code=with_code, deadline=deadline, quiet=quiet)
            continue
        if seeds is not None:
            click.echo(f"{experiment.name}, seed {experiment.config.seed} (1 of 1 runs)")
        run = Run.open(experiment, new, user_code)
        run.keeps_code, run.deadline, run.more_follows = with_code, deadline, number < len(experiments)
        follow(run, quiet)


def with_seeds(experiment: Experiment, count: int) -> list[Experiment]:
    """The experiment with its own seed and those that follow it, `count` in all.

    Each is an ordinary run in a folder of its own: it stops, continues, evaluates, verifies and reproduces by itself.
    """
    from shoal.config.experiment import with_settings

    first = experiment.config.seed
    return [experiment, *(with_settings(experiment, {"seed": first + k}) for k in range(1, count))]


def _that_fit(experiments: Sequence[Experiment], num_cpus: int | None, ray_address: str | None) -> list[Experiment]:
    """The experiments as they will be trained; refuse what the cores to use have no room for."""
    found = [_with_trial(_with_workers(experiment, num_cpus)) for experiment in experiments]
    for experiment in found:
        _check_resources(experiment, num_cpus, ray_address)
    return found


def _show(experiments: Sequence[Experiment], seeds: int) -> None:
    """Print what a dry run would train."""
    from shoal.config.experiment import experiment_yaml, experiments_yaml
    from shoal.runs.preset_notes import preset_note

    for experiment in experiments:
        if note := preset_note(experiment):
            click.echo(note, err=True)
    texts = experiments_yaml(experiments) if len(experiments) > FEW else map(experiment_yaml, experiments)
    click.echo("\n".join(text.rstrip() for text in texts))
    if seeds > 1:
        click.echo(f"# Each is trained with {seeds} seeds: config.seed, and those that follow it.")


def _environment(argument: str | None, option: str | None) -> str | None:
    """The environment that the argument or `--env` names."""
    if argument is not None and option is not None:
        raise click.UsageError(f"The environment is given twice, as {argument} and as --env {option}; leave one out.")
    return argument or option


def _check_given(env: str | None, file: Path | None, run_name: str | None) -> None:
    """Refuse to train without an environment; only algorithms need none for which all that they learn from is there."""
    if env is not None or file is not None:
        return
    if run_name is not None:
        from shoal.config.algorithms import ALGORITHMS
        from shoal.config.experiment import algorithm_name

        name = algorithm_name(run_name)
        if name in ALGORITHMS and ALGORITHMS[name].learns_offline:
            return
    raise click.UsageError("There is no environment to train on; type e.g. `shoal train CartPole-v1`, or `-f FILE`.")


def _num_workers(given: int | str | None, local_mode: bool) -> int | str | None:
    if not local_mode:
        return given
    if given:
        raise click.UsageError(f"--local-mode means no workers, but --num-workers is {given}; leave one out.")
    return 0


def _overrides(flags: Mapping[str, Any], sets: Sequence[str]) -> list[tuple[str, Any]]:
    """The keys that are set by flags of their own, and then those of `--set`."""
    from shoal.config.overrides import parse_override

    overrides = [(key, value) for key, value in flags.items() if value is not None]
    overrides += [parse_override(text) for text in sets]
    return overrides


@click.command(cls=Command)
@click.argument("run", metavar="RUN|NAME", shell_complete=runs)
@stop_option("Stop criteria that replace those of the run; repeatable.")
@set_option("Change a key that may change during a run, e.g. config.lr=1e-4; repeatable.")
@where_option()
@walltime_option
@trust_option
@click.option("--quiet", is_flag=True, help="Print only the start and the end.")
def resume(
    run: str,
    stop: tuple[str, ...],
    sets: tuple[str, ...],
    results_dir: str | None,
    walltime: str | None,
    trust: bool,
    quiet: bool,
) -> None:
    """Continue RUN (a folder, or the NAME of an experiment: its newest run) from its newest good checkpoint.

    The NAME of a sweep stands for its best trial. --set changes settings that may change during a run.
    """
    from shoal.config.overrides import parse_override

    overrides = [("stop", limits(stop))] if stop else []
    overrides += [parse_override(text) for text in sets]
    from shoal.cli.run_names import found_run
    from shoal.cli.run_view import follow
    from shoal.runs.run import Run

    resumed = Run.resume(found_run(run, results_dir, is_trained=False), dict(overrides), trust)
    resumed.deadline = deadline_of(walltime)
    follow(resumed, quiet)


def argument_or_file(argument: str | None, file: Path | None) -> tuple[str | None, Path | None]:
    """The argument and the file of `-f`, where a YAML file may be the argument itself."""
    if argument is None or not argument.lower().endswith((".yml", ".yaml")):
        return argument, file
    if file is not None:
        raise click.UsageError(f"Two files are given, {argument} and -f {file}; leave one out.")
    return None, Path(argument)


def env_of(env: str | None, protocol: str | None, command: str) -> str | dict[str, Any] | None:
    """What the argument means: the class of a file that has only one, a program with its arguments, or as it is."""
    if protocol is not None:
        if env is None:
            raise click.UsageError(f"--protocol is for a program: {command} ./PROGRAM --protocol {protocol}")
        return {"command": shlex.split(env), "protocol": protocol}
    if env is not None and env.endswith(".fmu"):
        if not Path(env).is_file():  # told before the reward, which nobody would write for a file that is not there
            raise ConfigError(f"env.fmu: there is no file {env} in {Path.cwd()}.")
        return {"fmu": env}
    if env is None or not env.endswith(".py"):
        return env
    from shoal.envs.catalogue import class_in_file

    return class_in_file(env, command)


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


def experiments_of(file: Path | None, overrides: list[tuple[str, Any]], trust: bool = False) -> list[Experiment]:
    """The experiments of a file, or the one that the overrides describe by themselves."""
    from shoal.config.experiment import experiment_from, experiments_from_file

    if file is None:
        from shoal.runs.folders import env_label

        env = dict(overrides).get("env")
        return [experiment_from({"name": env_label(env)}, overrides)]
    check_file(file, trust)
    experiments = experiments_from_file(file, overrides)
    names = [experiment.name for experiment in experiments]
    if len(set(names)) < len(names):
        raise click.UsageError(f"--name gives all {len(names)} experiments of {file} the same name; leave it out.")
    return experiments


def check_file(file: Path, trust: bool) -> None:
    """Refuse the file of a stranger's run or sweep: it, and what lies beside it, could name and hold any code."""
    from shoal.runs.folders import EXPERIMENT_FILE, SWEEP_FILE
    from shoal.runs.trust import check_own_file

    check_own_file(file, EXPERIMENT_FILE, False, trust)
    check_own_file(file, SWEEP_FILE, True, trust)


def experiments_to_try(
    env: str | None,
    file: Path | None,
    protocol: str | None,
    wraps: Sequence[str],
    sets: Sequence[str],
    command: str,
    run_name: str | None = None,
    trust: bool = False,
) -> tuple[list[Experiment], UserCode]:
    """The experiments of a command that tries environments and trains nothing, and where their code is."""
    from shoal.config.wrappers import parse_wrap
    from shoal.envs.importing import UserCode

    flags: dict[str, Any] = {
        "env": env_of(env, protocol, command),
        "run": run_name,
        "config.wrappers": [parse_wrap(text) for text in wraps] or None,
    }
    user_code = UserCode.at(*([file.parent] if file else []), ".")
    return experiments_of(file, _overrides(flags, sets), trust), user_code


def _with_workers(experiment: Experiment, num_cpus: int | None) -> Experiment:
    """The experiment with as many workers as the cores to use leave room for, if nobody says how many there are."""
    from shoal.config.experiment import with_settings
    from shoal.config.layout import DRIVER_CPUS, workers_in

    config = experiment.config
    is_said = "num_workers" in config.model_fields_set and config.num_workers != "auto"
    if num_cpus is None or is_said:
        return experiment
    fit = workers_in(config, num_cpus - DRIVER_CPUS)
    # `auto` asks for workers, so there is one at least, and a sentence if the cores do not do for it.
    count = max(fit, 1 if config.num_workers == "auto" else 0)
    return with_settings(experiment, {"num_workers": count})


def _with_trial(experiment: Experiment) -> Experiment:
    """The experiment whose `restore` is the best trial of a sweep, if it was the sweep."""
    if experiment.restore is None:
        return experiment
    from shoal.cli.run_names import best_trial
    from shoal.config.changing import changed
    from shoal.runs.folders import find_named

    trial = best_trial(find_named(experiment.restore, experiment.results_dir))
    return experiment if trial is None else changed(experiment, restore=str(trial))


def _check_resources(experiment: Experiment, num_cpus: int | None, ray_address: str | None) -> None:
    config = experiment.config
    if ray_address is not None and config.num_workers == 0 and not config.evaluation_num_workers:
        raise ConfigError("--ray-address: nothing runs on Ray without workers; add --num-workers N, or leave it out")
    if num_cpus is None:
        return
    from shoal.config.layout import DRIVER_CPUS, layout_of, workers_in
    from shoal.machine.cores import cores

    here = cores()
    is_elsewhere = ray_address is not None or bool(os.environ.get("RAY_ADDRESS"))
    if num_cpus > here and not is_elsewhere:
        raise ConfigError(
            f"--num-cpus: this machine has {here} (got {num_cpus}); set --num-cpus {here}, or --num-workers "
            f"{num_cpus - 1} if workers may share cores"
        )
    needed = layout_of(config).cpus + DRIVER_CPUS
    if needed > num_cpus:
        most = workers_in(config, num_cpus - DRIVER_CPUS)
        evaluation = f", {config.evaluation_num_workers} for evaluation" * bool(config.evaluation_num_workers)
        learners = f"{config.num_learners} learners" if config.num_learners > 1 else "the learner"
        is_enough = config.num_learners == 1 or most >= config.num_learners  # each learner needs a worker
        fewer = f"--num-workers {most}" if is_enough else "use fewer learners"
        raise ConfigError(
            f"--num-cpus: {config.num_workers} workers of {config.num_cpus_per_worker:g} cores{evaluation} and "
            f"{learners} need {needed:g} (got {num_cpus}); allow more, or {fewer}"
        )


def _limit_threads(experiments: list[Experiment], num_cpus: int) -> None:
    """Leave the learner the cores that the workers do not take."""
    from shoal.machine.threads import limit_threads

    taken = max(experiment.config.worker_count * experiment.config.num_cpus_per_worker for experiment in experiments)
    threads = max(1, int(num_cpus - taken))
    limit_threads(threads)
