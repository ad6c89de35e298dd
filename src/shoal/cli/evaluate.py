"""`shoal evaluate`."""

from __future__ import annotations

import csv
import io
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import algorithms, environments, runs
from shoal.cli.options import Command, trust_option, where_option
from shoal.cli.paths import short_path, typed_path
from shoal.data.number_text import number_text
from shoal.errors import ConfigError, EnvError, ShoalError

if TYPE_CHECKING:
    from shoal.cli.output import GuardedStream
    from shoal.config.settings import AlgorithmConfig
    from shoal.envs.cases import Cases
    from shoal.models.policy import Policy
    from shoal.runs.evaluation import PendingEvaluation
    from shoal.sampling.evaluation_episodes import EpisodeResults

SHOWN = 10
FILE = click.Path(path_type=Path)
IN_RUN = Path("evaluation_DATE.parquet")
"""What `--trajectories` without a name means."""


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
@click.option(
    "--trajectories",
    type=FILE,
    metavar="[PARQUET]",
    is_flag=False,
    flag_value=str(IN_RUN),
    help="File for every observation, action and reward; without a name, in the run's folder, for its report.",
)
@click.option("--video", type=FILE, metavar="MP4", help="File for a video of the episodes, one after another.")
@click.option("--gif", type=FILE, metavar="GIF", help="The same as a GIF, for pages and slides.")
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
    gif: Path | None,
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
    _check_pairs(cases, output, video or gif, num_workers)
    _check_files(output, trajectories, video, gif)
    from shoal.cli.output import guard_streams
    from shoal.cli.run_names import found_run
    from shoal.config.experiment import algorithm_name
    from shoal.envs.recording import RecordingOptions
    from shoal.runs.evaluation import start_cases, start_evaluation
    from shoal.runs.folders import env_text
    from shoal.runs.loaded_policy import find_checkpoint, score_of
    from shoal.runs.trained_agent import trained_agent

    streams = guard_streams()
    checkpoint = find_checkpoint(found_run(path, results_dir), best)
    agent = trained_agent(checkpoint, trust, env, algorithm_name(run_name))
    experiment = agent.experiment
    file = _read(cases, experiment.config)
    shown = 1 if file else episodes or steps or experiment.config.evaluation_duration
    videos = [one for one in (video, gif) if one is not None]
    recording = RecordingOptions(trajectories is not None, tuple(map(Path.absolute, videos)), shown)
    with ExitStack() as closing:
        setup = agent.setup(closing, num_workers)
        chosen: dict[str, Any] = {"explore": explore or None, "seed": seed, "recording": recording}
        if file is None:
            evaluation = start_evaluation(setup, episodes=episodes, steps=steps, **chosen)
        else:
            evaluation = start_cases(setup, file.cases, **chosen)
        folder, keeps = checkpoint.path.parent, env is None  # of another environment nothing could be replayed
        metrics, found = _results(evaluation, folder, keeps)
    click.echo(f"{experiment.run} {env_text(experiment.config.env)}  {short_path(checkpoint.path)}")
    if best:
        score = score_of(checkpoint.experiment_tree)
        click.echo(f"best by {score} {number_text(checkpoint.summary[score.removeprefix('min-')])}")
    from shoal.runs.case_results import case_rows, summary_of

    report = {
        "checkpoint": str(checkpoint.path),
        "run": experiment.run,
        "env": env_text(experiment.config.env),
        **metrics,
    }
    summary, place = summary_of(found), _place(folder)
    _tell(file, found, table(summary))
    _tell_incidents(found, folder, keeps)
    if file is not None:
        report["cases"], report["failed"] = summary, {str(at + 1): why for at, why in found.failed_cases.items()}
    place.write_text(json.dumps(report, indent=1, default=str) + "\n")
    if file is not None:
        _write_cases(output or place.with_suffix(".csv"), *case_rows(file, found))
    if trajectories is not None:
        own = place.with_suffix(".parquet") if trajectories == IN_RUN else trajectories
        _write_trajectories(own, file, found, agent.policy)
    if not found.video_problem:
        for one in videos:
            click.echo(f"video in {short_path(one.absolute())}")
    click.echo(f"written to {short_path(place)}")
    _check_printed(streams, place)
    _check_found(file, found)


def _results(evaluation: PendingEvaluation, folder: Path, keeps: bool) -> tuple[dict[str, Any], EpisodeResults]:
    """What an evaluation gives; its failures are kept in the run's folder, if they can be replayed from there."""
    from shoal.runs.resuming import stored_tree

    if keeps and stored_tree(folder) is not None:
        return evaluation.results_kept(folder)
    return evaluation.results()


def _tell_incidents(found: EpisodeResults, folder: Path, are_kept: bool) -> None:
    if found.incidents and are_kept:
        click.echo(f"the failures are listed by: shoal incidents {short_path(folder)}")


def _tell(file: Cases | None, found: EpisodeResults, numbers: str) -> None:
    """Print how many episodes or cases there were, which of these failed, and their numbers."""
    from shoal.data.number_text import counted

    if file is None:
        failures = f", {counted(found.failures, 'failure')}" if found.failures else ""
        click.echo(f"  {counted(len(found.episodes), 'episode')}, {counted(found.num_steps, 'step')}{failures}")
    else:
        click.echo(f"  {counted(len(file.rows), 'case')}, {len(found.failed_cases)} failed")
        for at, why in list(found.failed_cases.items())[:SHOWN]:
            click.echo(f"  case {at + 1}: {why}")
    click.echo(numbers)


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
        raise click.UsageError("A video is made in one process; leave --num-workers out, or --video and --gif.")


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


def _check_files(output: Path | None, trajectories: Path | None, video: Path | None, gif: Path | None) -> None:
    """Refuse what could not be written after hours of episodes."""
    if trajectories is not None:
        from shoal.runs.trajectories import check_trajectories

        check_trajectories(trajectories)
    if video is not None or gif is not None:
        from shoal.envs.video import check_video

        if video is not None:
            if video.suffix.lower() == ".gif":
                raise ConfigError(f"{video}: --video makes an .mp4; type --gif {typed_path(video)}")
            check_video(video, [".mp4"])
        if gif is not None:
            check_video(gif, [".gif"])
    if output is not None:
        from shoal.runs.atomic_files import refuse_foreign
        from shoal.runs.case_results import are_results

        refuse_foreign(output, "file of results", are_results, "--output")
    from shoal.runs.folders import check_writable

    for path in (output, trajectories, video, gif):
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
    click.echo(f"cases in {short_path(path.absolute())}")


def _write_trajectories(path: Path, file: Cases | None, found: EpisodeResults, policy: Policy) -> None:
    from shoal.runs.case_results import case_names
    from shoal.runs.trajectories import write_trajectories

    names = [] if file is None else case_names(file, found)
    with _written(path):
        write_trajectories(path, found.trajectories, policy.obs_spec.space, policy.action_spec.space, names)
    click.echo(f"trajectories in {short_path(path.absolute())}")


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
