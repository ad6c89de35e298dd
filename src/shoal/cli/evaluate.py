"""`shoal evaluate`."""

from __future__ import annotations

import csv
import io
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import algorithms, environments, runs
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path
from shoal.data.number_text import number_text
from shoal.errors import ConfigError, EnvError, ShoalError

if TYPE_CHECKING:
    from shoal.cli.output import GuardedStream
    from shoal.config.experiment import Experiment
    from shoal.config.settings import AlgorithmConfig
    from shoal.envs.cases import Cases
    from shoal.envs.making import EnvMaker
    from shoal.models.policy import Policy
    from shoal.runs.evaluation import EvaluationSetup
    from shoal.sampling.evaluation_episodes import EpisodeResults

SHOWN = 10
FILE = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("path", metavar="RUN|CHECKPOINT|NAME", shell_complete=runs)
@click.option(
    "--best", is_flag=True, help="Evaluate the best checkpoint of a run, by its checkpoint_score_attr or its return."
)
@click.option("--episodes", type=click.IntRange(1), help="Number of whole episodes; default: evaluation_duration.")
@click.option("--steps", type=click.IntRange(1), help="Number of environment steps, instead of episodes.")
@click.option("--cases", type=FILE, metavar="CSV", help="Run one episode per row of this file of cases instead.")
@click.option(
    "--output", type=FILE, metavar="CSV", help="File for the results of the cases; default: in the run's folder."
)
@click.option("--trajectories", type=FILE, metavar="PARQUET", help="File for every observation, action and reward.")
@click.option("--video", type=FILE, metavar="MP4|GIF", help="File for a video of the episodes, one after another.")
@click.option(
    "--num-workers", type=click.IntRange(0), default=0, help="Number of processes that evaluate; 0: only this one."
)
@click.option("--explore", is_flag=True, help="Sample actions instead of taking the most likely.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the evaluation environments.")
@click.option(
    "--run",
    "run_name",
    metavar="ALGORITHM",
    shell_complete=algorithms,
    help="Fail unless the checkpoint has this algorithm.",
)
@click.option(
    "--env",
    shell_complete=environments,
    help="Fail unless the checkpoint has this environment; allows a stranger's to run it from here.",
)
@where_option()
@trust_option
def evaluate(
    path: str,
    best: bool,
    episodes: int | None,
    steps: int | None,
    cases: Path | None,
    output: Path | None,
    trajectories: Path | None,
    video: Path | None,
    num_workers: int,
    explore: bool,
    seed: int | None,
    run_name: str | None,
    env: str | None,
    results_dir: str | None,
    trust: bool,
) -> None:
    """Run a trained agent without learning, with the algorithm, environment and settings of its checkpoint.

    Give the folder of a run or a checkpoint, the NAME of an experiment for its newest run, or the NAME of a sweep for
    its best trial.

    The header of a file of cases names its columns: env_config.NAME sets a value of env_config, options.NAME one of
    reset(options=...), seed the seed of the reset, and case a name of your own.
    """
    if sum(given is not None for given in (episodes, steps, cases)) > 1:
        raise click.UsageError("Use only one of --episodes, --steps and --cases.")
    _check_pairs(cases, output, video, num_workers)
    _check_files(output, trajectories, video)
    from shoal.cli.output import guard_streams
    from shoal.cli.run_names import found_run
    from shoal.config.experiment import algorithm_name
    from shoal.envs.making import maker_of, spaces_of
    from shoal.envs.recording import RecordingOptions
    from shoal.runs.checkpoints import understood
    from shoal.runs.evaluation import start_cases, start_evaluation
    from shoal.runs.folders import env_text
    from shoal.runs.loaded_policy import find_checkpoint, policy_of, score_of
    from shoal.runs.resuming import experiment_to_run
    from shoal.sampling.evaluation_episodes import check_same_form

    streams = guard_streams()
    checkpoint = find_checkpoint(found_run(path, results_dir), best)
    experiment, user_code = experiment_to_run(checkpoint.experiment_tree, checkpoint.path, trust, env is not None)
    _check_same("--run", algorithm_name(run_name), experiment.run)
    experiment = _with_env(experiment, env)
    file = _read(cases, experiment.config)
    shown = 1 if file else episodes or steps or experiment.config.evaluation_duration
    recording = RecordingOptions(trajectories is not None, None if video is None else video.absolute(), shown)
    maker = maker_of(experiment.config, user_code)
    policy = policy_of(checkpoint, maker, trust)
    if experiment.config.learns_offline:
        check_same_form(policy, *spaces_of(maker, experiment.config.env_config, experiment.config.env_ranks))
    with ExitStack() as closing:
        setup = _setup(experiment.config, maker, policy, num_workers, closing)
        with understood(checkpoint.path):
            setup = replace(setup, task=checkpoint.state.values["curriculum"]["task"])
        chosen: dict[str, Any] = {"explore": explore or None, "seed": seed, "recording": recording}
        if file is None:
            evaluation = start_evaluation(setup, episodes=episodes, steps=steps, **chosen)
        else:
            evaluation = start_cases(setup, file.cases, **chosen)
        metrics, found = evaluation.results()
    click.echo(f"{experiment.run} {env_text(experiment.config.env)}  {short_path(checkpoint.path)}")
    if best:
        score = score_of(checkpoint.experiment_tree)
        click.echo(f"best by {score} {number_text(checkpoint.summary[score.removeprefix('min-')])}")
    from shoal.reports.labels import counted
    from shoal.runs.case_results import case_rows, summary_of

    report = {
        "checkpoint": str(checkpoint.path),
        "run": experiment.run,
        "env": env_text(experiment.config.env),
        **metrics,
    }
    summary, place = summary_of(found), _place(checkpoint.path.parent)
    if file is None:
        failures = f", {counted(found.failures, 'failure')}" if found.failures else ""
        click.echo(
            f"  {counted(len(found.episodes), 'episode')}, {counted(found.num_steps, 'step')}{failures}\n"
            f"{table(summary)}"
        )
    else:
        report["cases"], report["failed"] = summary, {str(at + 1): why for at, why in found.failed_cases.items()}
        click.echo(f"  {counted(len(file.rows), 'case')}, {len(found.failed_cases)} failed")
        for at, why in list(found.failed_cases.items())[:SHOWN]:
            click.echo(f"  case {at + 1}: {why}")
        click.echo(table(summary))
    place.write_text(json.dumps(report, indent=1, default=str) + "\n")
    if file is not None:
        _write_cases(output or place.with_suffix(".csv"), *case_rows(file, found))
    if trajectories is not None:
        from shoal.runs.trajectories import write_trajectories

        with _written(trajectories):
            write_trajectories(trajectories, found.trajectories, policy.obs_spec.space, policy.action_spec.space)
        click.echo(f"trajectories in {trajectories}")
    if video is not None and not found.video_problem:
        click.echo(f"video in {video}")
    click.echo(f"written to {short_path(place)}")
    _check_printed(streams, place)
    _check_found(file, found)


def _check_found(file: Cases | None, found: EpisodeResults) -> None:
    """End with an error where the environment failed so that the results are not what was asked for."""
    if found.video_problem:
        raise ShoalError(found.video_problem)
    if file is not None and len(found.failed_cases) == len(file.rows):
        raise EnvError(f"all {len(file.rows)} cases failed; the first: {next(iter(found.failed_cases.values()))}")


def _check_pairs(cases: Path | None, output: Path | None, video: Path | None, num_workers: int) -> None:
    """Refuse options that have nothing to do without another, or with it."""
    if output is not None and cases is None:
        raise click.UsageError("--output is for the results of --cases; leave it out.")
    if video is not None and num_workers:
        raise click.UsageError("A video is made in one process; leave --num-workers or --video out.")


def _setup(
    config: AlgorithmConfig, maker: EnvMaker, policy: Policy, num_workers: int, closing: ExitStack
) -> EvaluationSetup:
    """The policy with its environment, and no more processes than are asked for here."""
    from shoal.config.changing import unchecked
    from shoal.parallel.ray_workers import without_gpu
    from shoal.parallel.start import start_evaluators
    from shoal.runs.evaluation import EvaluationSetup

    if num_workers and config.policy:
        raise ConfigError("--num-workers: a policy of RLlib's is evaluated in this process; leave it out")
    config = unchecked(without_gpu(config), num_workers=0, num_learners=1, evaluation_num_workers=num_workers)
    return EvaluationSetup(config, maker, policy, start_evaluators(config, policy, maker.user_code, None, closing))


def table(summary: dict[str, dict[str, Any]]) -> str:
    """Every number that episodes have, in aligned lines: its mean, where that lies, its smallest and its largest."""
    if not summary:
        return "  no episode ended"
    lines = [["", "mean", "95 % interval", "min", "max"]]
    for name, row in summary.items():
        interval = "-" if row["ci_low"] is None else f"{number_text(row['ci_low'])} to {number_text(row['ci_high'])}"
        lines.append([name, number_text(row["mean"]), interval, number_text(row["min"]), number_text(row["max"])])
    first, *others = (max(map(len, column)) for column in zip(*lines))
    return "\n".join(
        "  ".join(["", f"{line[0]:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(line[1:], others))])
        for line in lines
    )


def _with_env(experiment: Experiment, env: str | None) -> Experiment:
    """The experiment, which must have the environment that is given; one of recorded steps alone gets it."""
    from shoal.config.experiment import with_settings
    from shoal.runs.folders import env_text

    if experiment.config.env is not None:
        _check_same("--env", env, env_text(experiment.config.env))
        return experiment
    if env is None:
        raise ConfigError("env: the agent has learned from recorded steps alone; add --env, e.g. --env CartPole-v1")
    return with_settings(experiment, {"env": env})


def _check_same(flag: str, asked: str | None, stored: str) -> None:
    # `module.Class` and `module:Class` are two spellings of one thing.
    if asked is not None and asked.replace(":", ".") != stored.replace(":", "."):
        raise ConfigError(f"{flag}: the checkpoint has {stored} (got {asked}); leave {flag} out or use {stored}")


def _check_files(output: Path | None, trajectories: Path | None, video: Path | None) -> None:
    """Refuse what could not be written after hours of episodes."""
    if trajectories is not None:
        from shoal.runs.trajectories import check_trajectories

        check_trajectories(trajectories)
    if video is not None:
        from shoal.envs.video import check_video

        check_video(video)
    from shoal.runs.folders import check_writable

    for path in (output, trajectories, video):
        if path is None:
            continue
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder; write the name of a file in it")
        folder = path.absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"{path}: there is no folder {folder}; create it first")
        try:
            check_writable(folder)
        except OSError as error:
            raise ConfigError(f"{path}: {folder} cannot be written: {error.strerror or error}") from error


def _read(cases: Path | None, config: AlgorithmConfig) -> Cases | None:
    if cases is None:
        return None
    from shoal.envs.cases import read_cases

    return read_cases(cases, {**config.env_config, **config.evaluation_config.env_config})


def _write_cases(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    with _written(path):
        path.write_text(text.getvalue())
    click.echo(f"cases in {path}")


def _place(folder: Path) -> Path:
    """A new file for what is found, in the run's folder, or here if that cannot be written."""
    refused: OSError | None = None
    name = f"evaluation_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    for where in (folder, Path.cwd()):
        for count in itertools.count(1):
            path = where / (f"{name}.json" if count == 1 else f"{name}_{count}.json")
            try:
                path.touch(exist_ok=False)
                return path
            except FileExistsError:
                continue  # another one was evaluated in the same second
            except OSError as error:
                refused = error
                break
    assert refused is not None
    raise ConfigError(
        f"{folder} cannot be written: {refused.strerror}; change to a folder that can be written, and try again"
    )


def _check_printed(streams: list[GuardedStream], place: Path) -> None:
    """Say where the results are if stdout did not take them; who closed a pipe has read enough."""
    for stream in streams:
        loss = stream.loss
        if loss is not None and stream.stream_name == "stdout" and not isinstance(loss, BrokenPipeError):
            why = loss.strerror or loss
            raise ShoalError(f"the output cannot be written: {why}; the results are in {short_path(place)}")


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turn what the disk says while a file is written into a sentence."""
    try:
        yield
    except OSError as error:
        raise ShoalError(f"{path} cannot be written: {error.strerror or error}") from error
