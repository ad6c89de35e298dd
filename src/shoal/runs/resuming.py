"""Which run the same command continues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.experiment import Experiment, as_tree, experiment_from
from shoal.runs.checkpoints import checkpoints_of, newest_good, newest_summary
from shoal.runs.folders import EXPERIMENT_FILE, runs_of
from shoal.runs.stopping import stop_reason

FREE_KEYS = (
    "name",
    "stop",
    "checkpoint_freq",
    "checkpoint_at_end",
    "keep_checkpoints_num",
    "checkpoint_score_attr",
    "results_dir",
    "search_path",
    "config.log_level",
    "config.record_env",
    "config.render_env",
)
"""What may differ between a run and the command that continues it."""


@dataclass(frozen=True)
class Choice:
    """The run to continue, if any; `done` says which criterion it has met already; `note` what the user should know."""

    folder: Path | None = None
    done: str | None = None
    note: str | None = None


def choose(parent: Path, tree: Mapping[str, Any], stop: Mapping[str, float]) -> Choice:
    """The newest unfinished run of the same experiment, else a finished one, else none."""
    asked = settings(tree)
    finished: Choice | None = None
    other: Choice | None = None
    for folder in runs_of(parent):
        stored = stored_tree(folder)
        if stored is None:
            continue
        if settings(stored) != asked:
            other = other or _other(folder, stored, asked)
            continue
        summary = newest_summary(folder)
        if summary is None and not checkpoints_of(folder) and _has_results(folder):
            continue  # it saved nothing to go on from, and its results must not be written over
        if summary is None and checkpoints_of(folder):
            finished = finished or Choice(note=f"No checkpoint of {folder} can be read; a new run is started.")
            continue
        done = stop_reason(summary or {}, stop)
        if done is None:
            return Choice(folder)
        finished = finished or Choice(folder, done)
    return finished or other or Choice()


def experiment_of(tree: Mapping[str, Any]) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment that a run or a checkpoint wrote down, and where its modules are looked for."""
    search_path = tuple(str(folder) for folder in tree.get("search_path", ()))
    return experiment_from({key: value for key, value in tree.items() if key != "search_path"}), search_path


def tree_of(experiment: Experiment, search_path: Sequence[str]) -> dict[str, Any]:
    """What `experiment_of` reads back."""
    return {**as_tree(experiment), "search_path": list(search_path)}


def stored_tree(folder: Path) -> dict[str, Any] | None:
    """The experiment that a run, or its newest checkpoint, wrote down; None if it cannot be read."""
    try:
        tree = json.loads((folder / EXPERIMENT_FILE).read_bytes())
    except (OSError, ValueError):
        checkpoint = newest_good(folder)
        return checkpoint.experiment_tree if checkpoint is not None else None
    return tree if isinstance(tree, dict) else None


def _has_results(folder: Path) -> bool:
    results = folder / "result.json"
    return results.exists() and results.stat().st_size > 0


def settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two experiments the same, by dotted key, in JSON's types."""
    found: dict[str, Any] = {}

    def collect(branch: Mapping[str, Any], prefix: str) -> None:
        for name, value in branch.items():
            key = f"{prefix}{name}"
            if key in FREE_KEYS:
                continue
            if isinstance(value, Mapping) and value:
                collect(value, f"{key}.")
            else:
                found[key] = value

    collect(json.loads(json.dumps(tree)), "")
    return found


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The keys that differ, each with both values."""
    return [
        f"{key}: {there.get(key, 'not set')} there, {here.get(key, 'not set')} here"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]


def _other(folder: Path, stored: Mapping[str, Any], asked: Mapping[str, Any]) -> Choice:
    """A word about an unfinished run with other settings."""
    if stop_reason(newest_summary(folder) or {}, stored.get("stop") or {}) is not None:
        return Choice()
    keys = differences(settings(stored), asked)
    shown = "; ".join(keys[:5]) + (f"; and {len(keys) - 5} more" if len(keys) > 5 else "")
    return Choice(note=f"A new run is started, for {folder.name} is unfinished but has other settings ({shown}).")
