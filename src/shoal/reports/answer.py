"""The answer of a sweep: what is best, how sure that is, what matters, and what to type next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.problems import printable
from shoal.config.result_names import COUNTERS
from shoal.data.number_text import counted, number_text, percent_text
from shoal.reports.analysis import Analysis, tree_of
from shoal.reports.code_folders import entering_code
from shoal.reports.importance import Importance
from shoal.reports.labels import settings_text, short_names, value_text
from shoal.reports.records import TrialRecord, read_about
from shoal.reports.statistics import SeedGroup, verdict
from shoal.reports.tables import aligned, axis_text, fitted, reached_text, status_counts
from shoal.runs.folders import EXPERIMENT_FILE

MOST_ROWS = 10
BAR = 20


@dataclass(frozen=True)
class Answer:
    """What is known of a sweep now."""

    analysis: Analysis
    groups: list[SeedGroup]
    """Configurations, best first; without seeds each is one trial."""
    paths: list[str]
    """The settings that differ, most important first."""
    names: dict[str, str]
    """How each is called."""
    experiment: dict[str, Any] | None
    """What `best.yml` holds; None for a function of the user's own, or if nothing is best yet."""
    commands: list[tuple[str, str]]
    """What to type next, each with a word that says what it does."""

    @property
    def best(self) -> SeedGroup | None:
        """The best configuration."""
        return self.groups[0] if self.groups else None

    @property
    def seeds(self) -> bool:
        """Whether configurations have several seeds."""
        return self.analysis.sweep.seeds > 1

    @property
    def verdict(self) -> str:
        """Whether the first is better than the second by more than luck."""
        return verdict(self.groups, self.analysis.sweep.seeds)

    def score(self, group: SeedGroup) -> str:
        """`487.3`, or with seeds `487.3 (480.1 to 492.5)`."""
        if not self.seeds or group.interval is None:
            return number_text(group.mean)
        low, high = group.interval
        return f"{number_text(group.mean)} ({number_text(low)} to {number_text(high)})"

    def called(self, group: SeedGroup) -> str:
        """`trial 3`, or with seeds `trials 15-19`."""
        numbers = group.members
        if len(numbers) == 1:
            return f"trial {numbers[0]}"
        in_a_row = numbers[-1] - numbers[0] == len(numbers) - 1
        return f"trials {numbers[0]}-{numbers[-1]}" if in_a_row else f"trials {', '.join(map(str, numbers))}"

    def settings(self, record: TrialRecord) -> str:
        """The settings of a trial that are not the same in all."""
        return settings_text(record, self.paths, self.names)

    def counts(self) -> str:
        """`20 trials: 12 finished, 7 stopped early, 1 failed; 1,250,000 steps`."""
        records = self.analysis.records
        steps = math.fsum(record.last_result.get("timesteps_total", 0) for record in records)
        if not records:
            return "no trial has begun"
        text = f"{counted(len(records), 'trial')}: {status_counts(records)}"
        return text + (f"; {int(steps):,} steps" if steps else "")

    def name_of(self, importance: Importance) -> str:
        """`lr`, or for a pair `lr with gamma`."""
        return " with ".join(self.names[path] for path in importance.paths)


def answer_of(analysis: Analysis) -> Answer:
    """The answer as it is now."""
    groups = analysis.groups() if analysis.sweep.metric else []
    weights = {one.paths[0]: one.share for one in analysis.importances.settings}
    paths = sorted(analysis.differing, key=lambda path: -weights.get(path, 0.0))
    names = short_names(setting.path for setting in analysis.settings)
    best = groups[0].trials[0] if groups else None
    is_run = best is not None and (analysis.folder / best.folder / EXPERIMENT_FILE).is_file()
    experiment = best_experiment(analysis, best) if best is not None and is_run else None
    commands = _commands(analysis, best, experiment) if best is not None and experiment is not None else []
    return Answer(analysis, groups, paths, names, experiment, commands)


def best_experiment(analysis: Analysis, best: TrialRecord) -> dict[str, Any]:
    """The experiment of the best trial, to be trained for twice as long."""
    tree = tree_of(analysis.sweep, best)
    stop = {name: _twice(limit) for name, limit in (tree.get("stop") or {}).items() if name in COUNTERS}
    steps = int(best.last_result.get("timesteps_total", 0))
    # A goal that was met already would end it where the trial ended.
    tree["stop"] = stop or ({"timesteps_total": 2 * steps} if steps else {})
    config = dict(tree.pop("config"))
    env = {"env": tree.pop("env", None) or config.pop("env")}
    return {**tree, "name": f"{analysis.sweep.name}_best", **env, "config": config}


def _twice(limit: Any) -> Any:
    if isinstance(limit, str):
        from shoal.config.durations import seconds

        return 2 * seconds(limit)
    return 2 * limit


def _commands(analysis: Analysis, best: TrialRecord, experiment: Mapping[str, Any]) -> list[tuple[str, str]]:
    run = shlex.quote(str(analysis.folder / best.folder))
    place = entering_code(read_about(analysis.folder)["search_path"], experiment)
    train = f"{place}shoal train -f {shlex.quote(str(analysis.folder / 'best.yml'))}"
    further = " ".join(
        f"--stop {name}={limit:g}" if limit < 1e6 else f"--stop {name}={int(limit)}"
        for name, limit in experiment["stop"].items()
    )
    return [
        ("train for longer", train),
        ("continue it", f"shoal resume {run} {further}".strip()),
        ("evaluate", f"shoal evaluate {run}"),
    ]


def answer_lines(answer: Answer, width: int = 80) -> list[str]:
    """The table of the best trials with the settings in which they differ, and what matters."""
    analysis = answer.analysis
    lines = [answer.counts()]
    if answer.best is None:
        return lines
    lines += ["", f"Best by {printable(analysis.sweep.metric)} ({analysis.sweep.mode})", *_table(answer, width)]
    if answer.verdict:
        lines += ["", answer.verdict]
    found = analysis.importances
    if found.settings:
        lines += ["", "Importance: how much of the differences between trials each setting explains"]
        shown = [one for one in (*found.settings, *found.pairs) if one.share >= 0.005 or len(one.paths) == 1]
        longest = max(len(answer.name_of(one)) for one in shown)
        lines += [
            f"  {answer.name_of(one):<{longest}}  {percent_text(one.share):>5}  {_bar(one)}".rstrip() for one in shown
        ]
    if found.note:
        lines += ["", f"Importance: {found.note}." if not found.settings else f"  {found.note}"]
    return lines


def _bar(one: Importance) -> str:
    return "no more than chance" if one.by_chance else "█" * max(round(BAR * one.share), 1)


def _table(answer: Answer, width: int) -> list[str]:
    """The best trials, with as many of their settings as there is room for."""
    analysis, groups = answer.analysis, answer.groups[:MOST_ROWS]
    columns = [
        ["trials" if answer.seeds else "trial", *(answer.called(group).partition(" ")[2] for group in groups)],
        ["mean" if answer.seeds else "score", *(number_text(group.mean) for group in groups)],
    ]
    if answer.seeds:
        columns.append(["95 % interval", *(interval_text(group) for group in groups)])
        columns.append(["IQM", *(number_text(group.iqm) for group in groups)])
        if any(len(group.scores) < analysis.sweep.seeds for group in answer.groups):
            columns.append(["seeds", *(str(len(group.scores)) for group in groups)])
    else:
        columns.append([axis_text(analysis.axis), *(reached_text(group.trials[0], analysis.axis) for group in groups)])
    rights = len(columns)
    statuses = [", ".join(sorted({record.status for record in group.trials})) for group in groups]
    if set(statuses) != {"finished"}:
        columns.append(["status", *statuses])
    more = [
        [answer.names[path], *(value_text(group.trials[0].settings.get(path)) for group in groups)]
        for path in answer.paths
    ]
    columns, left = fitted(columns, more, width)
    lines = aligned(columns, rights)
    if len(answer.groups) > len(groups):
        lines.append(f"  and {len(answer.groups) - len(groups)} more")
    if left:
        names = ", ".join(left) if len(left) <= 3 else f"{len(left)} more settings"
        lines.append(f"  {names}: no room here, see the page")
    return lines


def interval_text(group: SeedGroup) -> str:
    """`480.1 to 492.5`."""
    return "-" if group.interval is None else " to ".join(number_text(end) for end in group.interval)
