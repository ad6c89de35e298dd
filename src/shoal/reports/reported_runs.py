"""Runs as plots, reports and comparisons see them: configuration and columns of results, read from folders alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.vocabulary import FOREIGN_RESULTS, nearest
from shoal.data.number_text import counted, number_text
from shoal.errors import ConfigError
from shoal.machine.terminal import printable
from shoal.reports.curves import Curve, Floats
from shoal.reports.labels import same_key, short_names, value_text
from shoal.reports.result_columns import LARGEST, read_columns
from shoal.reports.run_list import RETURN, Progress
from shoal.runs.checkpoint_folders import checkpoint_folder
from shoal.runs.folders import (
    DEFAULT_RESULTS,
    RESULTS_FILE,
    SWEEP_FILE,
    env_text,
    find_named,
    find_run,
    results_root,
    runs_of,
)
from shoal.runs.lineage import parent_of
from shoal.runs.results_check import checked_results
from shoal.runs.resuming import settings, stored_tree

SEED = "config.seed"
NOT_SET = "not set"
MOST_NAMED = 4  # runs in a warning


@dataclass(frozen=True)
class ReportedRun:
    """One run: its experiment as it was written down, and each result as a column with NaN where a line lacks it."""

    path: Path
    tree: Mapping[str, Any]
    columns: Mapping[str, Floats]
    unusable: Mapping[str, int] = field(default_factory=dict)
    """How many numbers of a result are not finite or too large, and so not in its column."""

    @property
    def name(self) -> str:
        """The experiment's name."""
        return printable(str(self.tree.get("name", self.path.parent.name)))

    @property
    def algorithm(self) -> str:
        """What trained it."""
        return printable(str(self.tree.get("run", "")))

    @cached_property
    def env(self) -> str:
        """The environment, in a word."""
        return printable(env_text(self.config.get("env", "")))

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration as a tree."""
        config = self.tree.get("config")
        return config if isinstance(config, Mapping) else {}

    @property
    def seed(self) -> int | None:
        """The seed, if it had one."""
        return self.config.get("seed")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What makes its learning what it is, by dotted key, but for the seed."""
        found = settings(self.tree)
        found.pop(SEED, None)
        return found

    @property
    def progress(self) -> Progress:
        """What its results say in all, as a list of runs has it, without another look at the file."""
        last = {name: float(column[-1]) for name, column in self.columns.items() if not np.isnan(column[-1])}
        returns = self.column(RETURN)
        return Progress(last, float(np.nanmax(returns)) if len(returns) else None)

    def last(self, name: str) -> float | None:
        """The last value of a result; None if it never came."""
        values = self.column(name)
        values = values[~np.isnan(values)]
        return float(values[-1]) if len(values) else None

    def column(self, name: str) -> Floats:
        """All values of a result, NaN where it lacks."""
        return self.columns.get(name, np.empty(0))

    def curve(self, metric: str, axis: str = "timesteps_total", until: float = inf) -> Curve | None:
        """The course of a result over another; None if there is no point of it."""
        y, x = self.column(metric), self.column(axis)
        if not len(y) or not len(x):
            return None
        known = ~np.isnan(y) & (x <= until)  # which no NaN is
        return Curve(x[known], y[known]) if known.any() else None


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in nothing but the seed; `label` says what tells them from the others."""

    label: str
    runs: tuple[ReportedRun, ...]

    def curves(self, metric: str, axis: str) -> list[Curve]:
        """The curves of those runs that have one."""
        found = [run.curve(metric, axis) for run in self.runs]
        return [curve for curve in found if curve is not None]


def read_run(folder: Path) -> ReportedRun:
    """Read the folder of a run; lines that are half written are passed over."""
    tree = stored_tree(folder)
    if tree is None or not isinstance(tree.get("config"), Mapping):
        raise ConfigError(f"{printable(str(folder))}: its experiment cannot be read; give the folder of a run.")
    return ReportedRun(folder, tree, *read_columns(folder / RESULTS_FILE))


def no_results(folder: Path, hint: str) -> str:
    """Why there is nothing to see of a run: its results are damaged, or it has none yet, for which there is a hint."""
    finding, place = checked_results(folder), printable(str(folder))
    if finding.verdict == "problem":
        return f"{place}: {RESULTS_FILE} cannot be used: {finding.text}; shoal verify {place} checks the rest."
    return f"{place} has no results yet; {hint}."


def folders_meant(text: str, results_dir: str | None = None) -> list[Path]:
    """The runs that a person means: a run, all runs of an experiment or of a folder, or the trials of a sweep."""
    place = Path(text).expanduser().absolute()
    if (place / SWEEP_FILE).is_file():
        return _trials(place)
    root = results_root(results_dir or DEFAULT_RESULTS)
    by_name = [] if text.startswith((".", "/", "~")) else [root / text]
    for folder in (place, *by_name):
        if checkpoint_folder(folder) is None and (found := runs_of(folder)):
            return found[::-1]
    found_place = find_named(text, results_dir or DEFAULT_RESULTS)
    return _trials(found_place) if (found_place / SWEEP_FILE).is_file() else [find_run(found_place)]


def _trials(sweep: Path) -> list[Path]:
    found = runs_of(sweep / "trials")
    if not found:
        raise ConfigError(f"{sweep} is a sweep whose trials are no runs; its page is {sweep / 'index.html'}.")
    return sorted(found)


def read_runs(texts: Iterable[str], results_dir: str | None = None) -> list[ReportedRun]:
    """All runs that a person names, each once; refused if none has a result."""
    folders = dict.fromkeys(folder.resolve() for text in texts for folder in folders_meant(text, results_dir))
    found = [read_run(folder) for folder in folders]
    if not any(run.columns for run in found):
        raise ConfigError(no_results(found[0].path, "there is something to see after the first iteration"))
    return found


def with_parents(runs: Sequence[ReportedRun], may_read: Callable[[Path], bool] = lambda _: True) -> list[ReportedRun]:
    """The runs, and after each that is a fork the run that it continues, if that is there and not among them."""
    found = list(runs)
    for run in runs:
        parent = parent_of(run.path)
        while parent is not None and may_read(parent) and parent.resolve() not in {one.path.resolve() for one in found}:
            with suppress(ConfigError):
                found.append(read_run(parent))
            if found[-1].path != parent:
                break
            parent = parent_of(parent)
    return found


def check_metric(runs: Sequence[ReportedRun], name: str, option: str = "--metric") -> None:
    """Refuse a result that no run has, with the nearest that there is."""
    if any(name in run.columns for run in runs):
        return
    if any(name in run.unusable for run in runs):
        raise ConfigError(f"{option}: no run has a finite number as its {printable(name)}")
    names = {printable(known) for run in runs for known in run.columns}
    foreign = FOREIGN_RESULTS.get(name.strip().lower())
    part = name.strip().lower()
    close = next((known for known in (foreign, f"{part}_mean") if known in names), None) or nearest(name, names)
    alike = [close] if close else sorted(known for known in names if part and part in known)
    hint = f"did you mean {' or '.join(alike)}?" if alike else f"there are {', '.join(sorted(names))}"
    raise ConfigError(f"{option}: no run has {name!r}; {hint}")


def left_out(
    runs: Sequence[ReportedRun], metric: str = "", axis: str = "timesteps_total", at: float = inf
) -> list[str]:
    """What to warn of: runs that have nothing to show beside others that have, and numbers that cannot be shown.

    What they lack is a metric at a place of an axis, or without a metric any result.
    """
    empty = [run for run in runs if (run.curve(metric, axis, at) is None if metric else not run.columns)]
    what = metric or "results"
    if at < inf:
        what += f" by {axis} {number_text(at)}"
    found = []
    if 0 < len(empty) < len(runs):
        has, are = ("has", "is") if len(empty) == 1 else ("have", "are")
        count = f"{len(empty)} of {counted(len(runs), 'run')}"
        found.append(f"{count} {has} no {what} and {are} left out: {_named(empty)}")
    for name in (metric or RETURN, axis):
        odd = [run for run in runs if name in run.unusable]
        if odd:
            count = counted(sum(run.unusable[name] for run in odd), "result", ("is", "are"))
            found.append(f"{count} left out, whose {name} is not finite or beyond {LARGEST:g}: {_named(odd)}")
    return found


def _named(runs: Sequence[ReportedRun]) -> str:
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return ", ".join(printable(run.path.name) for run in runs[:MOST_NAMED]) + more


def with_results(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups as far as their runs have results; all of them where none has."""
    found = [replace(group, runs=tuple(run for run in group.runs if run.columns)) for group in groups]
    return [group for group in found if group.runs] or list(groups)


def grouped(runs: Sequence[ReportedRun], by: Sequence[str] = ()) -> list[RunGroup]:
    """Runs that differ in the seed alone together, labelled by what differs; `by` names the settings instead."""
    keys = [_chosen_key(runs, name) for name in by] or differing_keys(runs)
    names = _key_names(keys)
    found: dict[tuple[str, ...], list[ReportedRun]] = {}
    for run in runs:
        found.setdefault(tuple(same_key(_value(run, key)) for key in keys), []).append(run)
    groups = [RunGroup(_label(members[0], keys, names), tuple(members)) for members in found.values()]
    with suppress(TypeError):  # values of several types have no order
        groups.sort(key=lambda group: [_order(group.runs[0], key) for key in keys])
    return groups


def differing_keys(runs: Sequence[ReportedRun]) -> list[str]:
    """The dotted keys that tell runs apart: algorithm and environment, and what differs where both are the same.

    Algorithms have different keys and defaults, which say no more than their names do.
    """
    families: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in runs:
        families.setdefault((run.algorithm, run.env), []).append(run)
    keys = [key for place, key in enumerate(("run", "config.env")) if len({names[place] for names in families}) > 1]
    for members in families.values():
        known = dict.fromkeys(key for run in members for key in run.settings)
        for key in known:
            if key not in (*keys, "run", "config.env") and len({same_key(_value(run, key)) for run in members}) > 1:
                keys.append(key)
    return keys


def _value(run: ReportedRun, key: str) -> Any:
    own = {"run": run.algorithm, "config.env": run.env, "name": run.name, SEED: run.seed}
    return own[key] if key in own else run.settings.get(key, NOT_SET)


def _order(run: ReportedRun, key: str) -> Any:
    value = _value(run, key)
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def _chosen_key(runs: Sequence[ReportedRun], name: str) -> str:
    """The dotted key that a person means by its end."""
    known = dict.fromkeys(["name", "run", "config.env", SEED, *(key for run in runs for key in run.settings)])
    found = [key for key in known if key == name or key.endswith(f".{name}")]
    if len(found) == 1 or name in found:
        return name if name in found else found[0]
    if found:
        raise ConfigError(f"--by: {name} may be {' or '.join(found)}; write it in full")
    close = nearest(name, [*known, *_key_names(list(known)).values()])
    hint = f"; did you mean {close}?" if close else ""
    raise ConfigError(f"--by: no run has the setting {name!r}{hint}")


def _key_names(keys: Sequence[str]) -> dict[str, str]:
    return short_names(keys)


def _label(run: ReportedRun, keys: Sequence[str], names: Mapping[str, str]) -> str:
    """`PPO, lr 0.0003`: algorithm, environment and name by themselves, settings with their names."""
    words = []
    for key in keys:
        text = value_text(_value(run, key))
        words.append(text if key in ("run", "config.env", "name") else f"{names[key]} {text}")
    return ", ".join(words) or f"{run.algorithm} {run.env}".strip() or run.name
