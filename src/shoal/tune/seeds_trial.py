"""All seeds of one configuration as one trial of Ray Tune: they train together, in one process.

To everybody but Tune each seed is a trial of its own, with its number, its folder, its record and its end. Tune hears
of their results one at a time, and of the mean of their metric.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import ray
from ray.tune import PlacementGroupFactory

from shoal.config.search_spaces import combinations
from shoal.config.sweep import MOST_CHECKS, Sweep, experiment_with, trial_count
from shoal.data.results import numbers
from shoal.errors import ConfigError, MissingMetric, ShoalError
from shoal.reports.records import (
    Failure,
    read_done,
    read_failure,
    results_of,
    trial_folder,
    write_beginning,
    write_done,
    write_failure,
)
from shoal.runs.checkpoints import newest_summary
from shoal.runs.run import Result, Run, checked
from shoal.runs.seed_runs import SeedRuns
from shoal.runs.seed_stack import why_not_configured_together
from shoal.runs.stopping import stop_reason
from shoal.tune.metric_checks import check_finite, check_metric, may_come_later
from shoal.tune.ray_spaces import first_seed, settings_of
from shoal.tune.trial import TuneTrial, sentence_of, wait_until_free
from shoal.tune.trial_resources import bundles_of

ROUNDS = 2
"""Configurations for each place, from which on seeds train together: with fewer, cores would stand idle at the end."""
OF_TRIAL, VALUES, OVER = "of_trial", "values", "over"
"""What stands in a result that Tune hears: whose it is, its numbers, and which trials have ended meanwhile."""


def why_seeds_apart(sweep: Sweep, at_once: int) -> str | None:
    """What keeps the seeds of a configuration from training together, if anything does."""
    configurations = trial_count(sweep) // sweep.seeds
    if sweep.max_concurrent_trials is not None:
        return "max_concurrent_trials: together they would be more at once"
    if configurations < ROUNDS * at_once:
        return f"{at_once} trials fit at once, and there are only {configurations} configurations"
    for values in combinations(sweep.settings, MOST_CHECKS):
        try:
            experiment = experiment_with(sweep, values, None)
        except ConfigError:
            continue  # settings that are right only together with others
        if experiment.config.max_concurrent_envs is not None:
            return "max_concurrent_envs: together they would be more at once"
        if (reason := why_not_configured_together(experiment)) is not None:
            return reason
    return None


@dataclass
class SeedOfTrial:
    """One of the seeds that train together."""

    number: int
    seed: int
    folder: Path
    last: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    has_failed: bool = False


class TrialRun(Run):
    """A run whose results must have the metric of its sweep."""

    metric = ""

    def results(self, hold_signals: bool = False) -> Generator[Result, None, None]:
        """See `Run`."""
        seen: dict[str, Any] = {}
        for result in results_of(self.folder):
            seen |= numbers(result)
        with closing(super().results(hold_signals)) as results:
            for result in results:
                if result:
                    seen |= numbers(result)
                    check_finite(self.metric, result)
                    if not may_come_later(self.metric, result):
                        check_metric(self.metric, seen)
                yield result
        if self.outcome is not None and self.outcome.kind == "stopped" and self.metric not in seen:
            raise ShoalError(f"{self.metric} had no value up to the end ({self.outcome.sentence})")


class SeedsTrial(TuneTrial):
    """The runs of all seeds of one configuration; each goes on from its own newest checkpoint."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """As for one of them: they share its places."""
        experiment = experiment_with(cls.assignment.sweep, *settings_of(_of_one_seed(cls.assignment.sweep), config))
        return PlacementGroupFactory(bundles_of(experiment.config), strategy="PACK")

    def begin(self, config: dict[str, Any]) -> None:
        """Find out which of them have something left to do."""
        sweep, first = self.assignment.sweep, int(self.trial_name)
        self.settings, _ = settings_of(_of_one_seed(sweep), config)
        self.members: list[SeedOfTrial] = []
        for k in range(sweep.seeds):
            folder = self.sweep_folder / trial_folder(first + k)
            member = SeedOfTrial(first + k, first_seed(sweep) + k, folder)
            self.members.append(member)
            folder.mkdir(parents=True, exist_ok=True)
            write_beginning(folder, self.settings, member.seed)
            member.has_failed = read_failure(folder, self.assignment.life) is not None
            member.is_over = member.has_failed or read_done(folder) is not None
            for result in results_of(folder):
                member.last |= numbers(result)
        self.over: list[int] = []  # that have ended since Tune was told last
        self.count, self.begun = 0, perf_counter()
        self.is_told = False  # that a signal has ended them
        openers = [partial(self._opened, member) for member in self.members if not member.is_over]
        self.runs = SeedRuns(openers, on_end=self._ended)
        self.results: Iterator[tuple[Run, Result]] = self.runs.results()

    def one_result(self) -> dict[str, Any]:
        """The next result of one of them; what they have come to when all have ended."""
        found = next(self.results, None)
        if found is not None:
            run, result = found
            member = self._member_of(run)
            values = numbers(result)
            member.last |= values
            return self._told({OF_TRIAL: member.number, VALUES: dict(member.last)})
        if self.runs.signal is not None:
            if self.is_told:
                ray.actor.exit_actor()  # type: ignore[no-untyped-call]
            self.is_told = True
            return self._told({})
        for member in self.members:
            if not member.is_over:  # what was wrong with another is wrong with it too
                self._fail(member, self.runs.errors[0])
        if self.runs.errors and all(member.has_failed for member in self.members):
            raise self.runs.errors[0]
        return self._told({"done": True})

    def cleanup(self) -> None:
        """Save the runs and let go of their folders; may be called twice."""
        if self.refusal is None:
            self.results.close()  # type: ignore[attr-defined]

    def _opened(self, member: SeedOfTrial) -> Run:
        """The run of a trial, when its turn has come."""
        sweep = self.assignment.sweep
        try:
            experiment, notes = checked(experiment_with(sweep, self.settings, member.seed), self.assignment.user_code)
            wait_until_free(member.folder)
            done = stop_reason(newest_summary(member.folder) or {}, experiment.stop)
            run = TrialRun(experiment, member.folder, self.assignment.user_code, done, notes)
        except Exception as error:
            self._fail(member, error)
            raise error if isinstance(error, ShoalError) else ShoalError(sentence_of(error)) from error
        run.metric = sweep.metric
        return run

    def _ended(self, run: Run, error: Exception | None) -> None:
        """Write down how one of them has ended, unless it goes on in another life."""
        member = self._member_of(run)
        if error is not None:
            self._fail(member, error)
        elif run.outcome is not None and run.outcome.kind == "stopped" and self.runs.signal is None:
            member.is_over = True
            self.over.append(member.number)
            write_done(member.folder, "finished", run.outcome.sentence)

    def _fail(self, member: SeedOfTrial, error: Exception) -> None:
        member.is_over = member.has_failed = True
        self.over.append(member.number)
        member.folder.mkdir(parents=True, exist_ok=True)  # a run that cannot begin removes it
        failure = Failure(self.assignment.life, sentence_of(error), isinstance(error, MissingMetric))
        write_failure(member.folder, failure, "".join(traceback.format_exception(error)))

    def _member_of(self, run: Run) -> SeedOfTrial:
        return next(member for member in self.members if member.folder == run.folder)

    def _told(self, told: dict[str, Any]) -> dict[str, Any]:
        """What Tune hears beside that."""
        metric, over = self.assignment.sweep.metric, self.over
        self.over = []
        self.count += 1
        known = [member.last[metric] for member in self.members if metric in member.last]
        mean = {metric: sum(known) / len(known)} if known else {}
        times = {"training_iteration": self.count, "time_total_s": perf_counter() - self.begun}
        return {**times, **mean, "done": False, **told, OVER: over}


def _of_one_seed(sweep: Sweep) -> Sweep:
    """The sweep as Tune knows it, to which all seeds of a configuration are one trial."""
    return replace(sweep, seeds=1)
