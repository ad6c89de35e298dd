"""`shoal compare`: which of two is better, how sure that is, and with --until-sure further seeds until it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import runs as run_names
from shoal.cli.options import Command, trust_option, where_option
from shoal.errors import ConfigError

if TYPE_CHECKING:
    from shoal.config.experiment import Experiment
    from shoal.config.sweep import Mode
    from shoal.envs.importing import UserCode
    from shoal.reports.comparison import Comparison
    from shoal.reports.reported_runs import ReportedRun
    from shoal.reports.sequential import PairedTest
    from shoal.runs.run import Run
    from shoal.runs.seed_runs import SeedRuns

MOST_DIFFERENCES = 20
LONGEST_LABEL = 40


@dataclass(frozen=True)
class Asked:
    """What is compared: the two sides by their folders, and the measure."""

    texts: tuple[str, str]
    results_dir: str | None
    metric: str
    axis: str
    mode: Mode
    at: float | None


@click.command(cls=Command)
@click.argument("first", metavar="A", shell_complete=run_names)
@click.argument("second", metavar="B", shell_complete=run_names)
@click.option("--metric", default="episode_reward_mean", show_default=True, metavar="NAME", help="Result to compare.")
@click.option("--mode", type=click.Choice(["max", "min"]), default="max", show_default=True, help="What is better.")
@click.option(
    "--x",
    "axis",
    type=click.Choice(["timesteps_total", "time_total_s", "training_iteration"]),
    default="timesteps_total",
    show_default=True,
    help="By what the place of the comparison is measured.",
)
@click.option("--at", type=float, help="Where to compare; default: where the shortest run ends.")
@click.option("--until-sure", is_flag=True, help="Train further seeds of both until it is decided.")
@click.option(
    "--max-seeds",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Seeds of each at most, with --until-sure.",
)
@click.option("--budget", metavar="TIME", help="Start no further run after this time, such as 90m, with --until-sure.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, for programs.")
@trust_option
@where_option()
def compare(
    first: str,
    second: str,
    metric: str,
    mode: Mode,
    axis: str,
    at: float | None,
    until_sure: bool,
    max_seeds: int,
    budget: str | None,
    as_json: bool,
    trust: bool,
    results_dir: str | None,
) -> None:
    """Compare A with B: each is a run or an experiment, whose runs differ in nothing but the seed.

    It prints the settings that differ, the interquartile mean of both with its 95 % interval, how often a run of one is
    better than one of the other, and a permutation test, and says what follows in one sentence. After Ctrl-C, the same
    command with --until-sure continues.
    """
    asked = Asked((first, second), results_dir, metric, axis, mode, at)
    budget_s = _seconds(budget) if budget is not None else None
    if budget is not None and not until_sure:
        raise ConfigError("--budget: nothing is trained without --until-sure; add that, or leave it out")
    sides = _sides(asked)
    labels = _labels(asked, sides)
    paired = None
    if until_sure:
        paired = _until_sure(asked, sides, labels, max_seeds, budget_s, as_json, trust)
        sides = _with_siblings(sides)
    from shoal.reports.comparison import compared
    from shoal.reports.reported_runs import left_out

    made = compared((labels[0], sides[0]), (labels[1], sides[1]), metric, axis, mode, at)
    for sentence in (*left_out(sides[0], metric, axis, made.at), *left_out(sides[1], metric, axis, made.at)):
        click.echo(f"Warning: {sentence}.", err=True)
    differences = _differences(sides)
    if as_json:
        import json

        click.echo(json.dumps(_as_json(made, labels, differences, paired)))
        return
    _tell(made, labels, differences, paired)


def _sides(asked: Asked) -> list[list[ReportedRun]]:
    """The runs of both, which have the metric and are of one environment, and of each of one configuration."""
    from shoal.reports.reported_runs import check_metric, grouped, read_runs

    sides = [read_runs([text], asked.results_dir) for text in asked.texts]
    for text, runs in zip(asked.texts, sides):
        groups = grouped(runs)
        if len(groups) > 1:
            kinds = "; ".join(group.label for group in groups[:4])
            raise ConfigError(f"{text}: has runs of {len(groups)} configurations ({kinds}); give a run or runs of one")
        check_metric(runs, asked.metric)
    first, second = sides[0][0].env, sides[1][0].env
    if first != second:
        texts = " and ".join(asked.texts)
        named = f"{texts} are of two environments ({first} and {second})"
        raise ConfigError(f"{named}, whose results do not compare; give runs of one")
    if {run.path for run in sides[0]} & {run.path for run in sides[1]}:
        raise ConfigError(f"{asked.texts[0]} and {asked.texts[1]} have a run in common; give two different ones")
    return sides


def _with_siblings(sides: Sequence[Sequence[ReportedRun]]) -> list[list[ReportedRun]]:
    """The runs of both as they are now, and those beside them that differ in nothing but the seed.

    Further seeds are among those, and what was interrupted has gone on.
    """
    from shoal.reports.reported_runs import read_run
    from shoal.runs.folders import runs_of

    found = []
    for runs in sides:
        known = {run.path: read_run(run.path) for run in runs}
        for folder in sorted(runs_of(runs[0].path.parent)):
            if folder.resolve() not in known:
                beside = read_run(folder)
                if beside.settings == runs[0].settings and beside.columns:
                    known[beside.path] = beside
        found.append(list(known.values()))
    return found


def _labels(asked: Asked, sides: Sequence[Sequence[ReportedRun]]) -> tuple[str, str]:
    """What the two are called: by their experiments, the settings that differ, or their folders: what tells them apart.

    Settings are names only where they are short.
    """
    from shoal.reports.reported_runs import grouped

    names = (sides[0][0].name, sides[1][0].name)
    if names[0] != names[1]:
        return names
    by_run = {run.path: group.label for group in grouped([*sides[0], *sides[1]]) for run in group.runs}
    settings = (by_run[sides[0][0].path], by_run[sides[1][0].path])
    if settings[0] != settings[1] and max(map(len, settings)) <= LONGEST_LABEL:
        return settings
    folders = (Path(asked.texts[0]).name, Path(asked.texts[1]).name)
    return folders if folders[0] != folders[1] else asked.texts


def _differences(sides: Sequence[Sequence[ReportedRun]]) -> list[tuple[str, Any, Any]]:
    """The settings that differ, with both values."""
    from shoal.reports.reported_runs import NOT_SET, differing_keys

    first, second = sides[0][0], sides[1][0]
    found = []
    for key in differing_keys([first, second]):
        own = {"run": (first.algorithm, second.algorithm), "config.env": (first.env, second.env)}
        values = own.get(key) or (first.settings.get(key, NOT_SET), second.settings.get(key, NOT_SET))
        found.append((key, *values))
    return found


def _tell(
    made: Comparison,
    labels: tuple[str, str],
    differences: Sequence[tuple[str, Any, Any]],
    paired: PairedTest | None,
) -> None:
    from shoal.data.number_text import number_text
    from shoal.reports.labels import short_names, value_text

    names = short_names([key for key, _, _ in differences])
    if not differences:
        click.echo("The two differ in nothing but the seed.")
    for key, before, after in differences[:MOST_DIFFERENCES]:
        click.echo(f"  {names[key]}: {value_text(before)} -> {value_text(after)}")
    if len(differences) > MOST_DIFFERENCES:
        click.echo(f"  and {len(differences) - MOST_DIFFERENCES} more settings")
    click.echo(f"{made.metric} at {made.axis} {number_text(made.at)}, interquartile mean over runs:")
    wide = max(map(len, labels))
    by_label = {made.first.label: made.first, made.second.label: made.second}
    for label in labels:
        runs = by_label[label].runs
        numbers = [str(run.seed) for run in sorted(runs, key=lambda run: (run.seed is None, run.seed))]
        seeds = ", ".join(numbers[:12]) + (", ..." if len(numbers) > 12 else "")
        click.echo(f"  {label:<{wide}}  {by_label[label].text()}, seed{'s' * (len(runs) != 1)} {seeds}")
    interval = made.probability_interval
    sure = "" if interval is None else f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})"
    if max(len(made.first.scores), len(made.second.scores)) > 1:  # of one run each there is nothing to count
        click.echo(f"  a run of {made.first.label} is better with probability {made.probability:.2f}{sure}")
    if made.chance is not None:
        click.echo(f"  permutation test of the means: p = {made.chance:.3g}")
    click.echo(paired.sentence() if paired is not None else made.sentence())


def _as_json(
    made: Comparison, labels: tuple[str, str], differences: Sequence[tuple[str, Any, Any]], paired: PairedTest | None
) -> Mapping[str, Any]:
    by_label = {made.first.label: made.first, made.second.label: made.second}
    sides = [
        {"name": label, "iqm": side.iqm, "interval": side.interval, "scores": side.scores}
        for label, side in ((label, by_label[label]) for label in labels)
    ]
    found: dict[str, Any] = {
        "metric": made.metric,
        made.axis: made.at,
        "runs": sides,
        "differences": {key: [before, after] for key, before, after in differences},
        "better": made.first.label,
        "probability": made.probability,
        "probability_interval": made.probability_interval,
        "p": made.chance,
        "sure": made.is_sure if paired is None else paired.is_decided,
        "sentence": made.sentence() if paired is None else paired.sentence(),
    }
    if paired is not None:
        found["pairs"] = {
            "won": [paired.first_wins, paired.second_wins],
            "ties": paired.ties,
            "evidence": paired.evidence,
        }
    return found


def _seconds(text: str) -> float:
    """`90m` as seconds, in the words of `stop`."""
    from shoal.config.durations import seconds

    try:
        return seconds(text)
    except ValueError:
        raise ConfigError(f"--budget {text}: is no length of time; write e.g. 90m or 2h") from None


def _until_sure(
    asked: Asked,
    given: Sequence[Sequence[ReportedRun]],
    labels: tuple[str, str],
    max_seeds: int,
    budget_s: float | None,
    is_silent: bool,
    trust: bool,
) -> PairedTest:
    """Train seeds of both, one pair after the other, until it is decided or the budget is spent.

    Where seeds train together, as many pairs follow at once as it takes in any case, unless a budget may end it before.
    """
    from shoal.reports.sequential import by_seed, next_seeds, paired_test

    began = time.monotonic()
    if given[0][0].settings == given[1][0].settings:
        raise ConfigError("--until-sure: the two differ in nothing but the seed, so there is nothing to decide")
    trained: set[int] = set()
    while True:
        sides = _with_siblings(given)
        finished = [by_seed([run for run in runs if _is_finished(run)]) for runs in sides]
        common = sorted(finished[0].keys() & finished[1].keys())
        pairs = _with_data(asked, [(finished[0][seed], finished[1][seed]) for seed in common])
        test = paired_test(labels, pairs, asked.metric, asked.axis, asked.mode, asked.at)
        if not is_silent:
            click.echo(f"{len(pairs)} pairs: {test.first_wins} to {test.second_wins}, evidence {test.evidence:.3g}")
        is_late = budget_s is not None and time.monotonic() - began >= budget_s
        if test.is_decided or is_late or (len(common) >= max_seeds):
            _tell_spent(test, is_late, is_silent)
            return test
        count = 1
        if budget_s is None and all(_trains_together(runs[0], trust) for runs in sides):
            count = min(test.least_missing, max_seeds - len(common))
        seeds = next_seeds(list(finished[0]), list(finished[1]), count)
        if again := trained.intersection(seeds):
            raise ConfigError(f"--until-sure: a run of seed {min(again)} does not finish; look at it with `shoal runs`")
        trained.update(seeds)
        for runs, known in zip(sides, finished):
            lacking = [seed for seed in seeds if seed not in known]
            if lacking:
                _train(runs[0], lacking, is_silent, trust)


def _with_data(asked: Asked, pairs: Sequence[tuple[ReportedRun, ReportedRun]]) -> list[tuple[ReportedRun, ReportedRun]]:
    """The pairs of which both have what is compared."""
    return [pair for pair in pairs if all(run.curve(asked.metric, asked.axis) is not None for run in pair)]


def _tell_spent(test: PairedTest, is_late: bool, is_silent: bool) -> None:
    if not test.is_decided and not is_silent:
        spent = "The time of --budget is spent" if is_late else "The number of --max-seeds is reached"
        click.echo(f"{spent}; with more, the same command continues.")


def _is_finished(run: ReportedRun) -> bool:
    from shoal.reports.run_list import listed

    found = listed(run.path)
    return found is not None and found.state == "finished"


def _experiment_of(like: ReportedRun, trust: bool) -> tuple[Experiment, UserCode]:
    """The experiment of a run, for other seeds beside it, and where its code is."""
    from shoal.config.changing import changed
    from shoal.runs.folders import SWEEP_FILE
    from shoal.runs.resuming import experiment_to_run

    folder = like.path.parent
    if (folder.parent / SWEEP_FILE).is_file():
        raise ConfigError(f"--until-sure: {like.path} is a trial of a sweep; train its configuration by itself first")
    experiment, user_code = experiment_to_run(like.tree, like.path, trust)
    return changed(experiment, name=folder.name, results_dir=str(folder.parent)), user_code


def _trains_together(like: ReportedRun, trust: bool) -> bool:
    """Whether several seeds of a run take little longer than one."""
    from shoal.runs.seed_stack import why_not_configured_together

    return why_not_configured_together(_experiment_of(like, trust)[0]) is None


def _train(like: ReportedRun, seeds: Sequence[int], is_silent: bool, trust: bool) -> None:
    """Train an experiment with other seeds, beside its other runs; one that was interrupted continues."""
    from functools import partial

    from shoal.cli.seeds_view import open_seeds_view
    from shoal.config.experiment import with_settings
    from shoal.machine.terminal import can_redraw
    from shoal.runs.run import Run
    from shoal.runs.seed_runs import SeedRuns

    experiment, user_code = _experiment_of(like, trust)
    asked = [with_settings(experiment, {"seed": seed}) for seed in seeds]
    ended: list[Run] = []
    runs = SeedRuns(
        [partial(Run.open, each, user_code=user_code) for each in asked], on_end=lambda run, _: ended.append(run)
    )
    is_quiet = is_silent or not can_redraw()
    with open_seeds_view(experiment.name, experiment.stop, is_quiet, experiment.config.log_level) as view:
        for run, result in runs.results():
            view.show_seed(run.experiment.config.seed, result)
    _check_trained(runs, ended)
    if not is_silent:
        for run in ended:
            click.echo(_trained_line(run))


def _check_trained(runs: SeedRuns, ended: Sequence[Run]) -> None:
    """Raise what has ended one of the runs; end the process where a signal has ended all."""
    from shoal.cli.paths import short_path
    from shoal.errors import ShoalError
    from shoal.machine.signals import exit_code
    from shoal.runs.run import STUCK

    if runs.signal is not None:
        saved = ", ".join(short_path(run.folder) for run in ended) or "nothing"
        are = "are" if len(ended) > 1 else "is"
        click.echo(f"Stopped; {saved} {are} saved, and the same command continues.", err=True)
        sys.exit(exit_code(runs.signal))
    if runs.errors:
        raise runs.errors[0]
    if runs.is_stuck:
        raise ShoalError(STUCK)


def _trained_line(run: Run) -> str:
    """What a run has reached."""
    from shoal.data.number_text import number_text

    mean = number_text(run.last_result.get("episode_reward_mean"))
    steps = int(run.last_result.get("timesteps_total", 0))
    return f"  {run.experiment.name}, seed {run.experiment.config.seed}: return {mean} after {steps:,} steps"
