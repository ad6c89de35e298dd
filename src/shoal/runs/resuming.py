"""Which run the same command continues, and what may change in a run that goes on."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.config.changing import changed
from shoal.config.experiment import Experiment, apply_overrides, as_tree, experiment_from
from shoal.config.problems import got
from shoal.data.number_text import counted
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, ConfigError
from shoal.runs.bounded_files import bounded_bytes, bounded_json, open_regular
from shoal.runs.checkpoint_folders import LIMITS, checkpoints_of
from shoal.runs.checkpoints import newest_good, newest_summary
from shoal.runs.folders import EXPERIMENT_FILE, RESULTS_FILE, runs_of
from shoal.runs.lease import holder
from shoal.runs.lost_processes import disappearance
from shoal.runs.outcomes import read_outcome
from shoal.runs.stopping import stop_reason
from shoal.runs.trust import MARK, code_to_run, is_own, marked

MOST_LINE_BYTES = 1 << 20  # of a result, at the end of the file with all of them
FREE_KEYS = (
    "name",
    "stop",
    "checkpoint_freq",
    "checkpoint_at_end",
    "keep_checkpoints_num",
    "checkpoint_score_attr",
    "preset",  # its settings are in config
    "results_dir",
    "search_path",
    MARK,
    "report",
    "loggers",
    "config.log_level",
    "config.record_env",
    "config.render_env",
)
"""What may differ between a run and the command that continues it."""
FREE_SWEEP_KEYS = ("max_concurrent_trials", *(key for key in FREE_KEYS if key != "stop"))
"""What may differ between a sweep and the command that continues it; its trials are compared where they stop."""

CHANGEABLE = (
    *(key for key in FREE_KEYS if key not in ("name", "preset", "results_dir", "search_path", MARK)),
    "config.lr_schedule",
    "config.entropy_coeff_schedule",
    "config.clip_param_schedule",
    "config.evaluation_interval",
    "config.evaluation_duration",
    "config.evaluation_duration_unit",
    "config.evaluation_config",
    "config.max_env_failures",
    "config.env_isolation",
    "config.env_step_timeout_s",
    "config.env_reset_timeout_s",
    "config.env_memory_limit_mb",
    "config.env_scratch_limit_mb",
    "config.env_restart_delay_s",
    "config.max_concurrent_envs",
    "config.env_resets_per_s",
    "config.max_worker_restarts",
    "config.ignore_worker_failures",
    "config.recreate_failed_workers",
    "config.kernel",
    "config.restore_episodes",
)
"""What may change in a run that goes on, beside the keys that its algorithm calls mutable.

No array, environment, process or random stream of it depends on these.
"""


@dataclass(frozen=True)
class ResumeChoice:
    """The run to continue, if any; `done` says which criterion it has met already; `note` what the user should know."""

    folder: Path | None = None
    done: str | None = None
    note: str | None = None


def choose(
    parent: Path, tree: Mapping[str, Any], stop: Mapping[str, float], source: Path | None = None
) -> ResumeChoice:
    """The newest unfinished run of the same experiment, else a finished one, else none.

    `source` is where a run that begins with the policy of another takes it from: a checkpoint, or a folder of several.
    """
    asked = settings({key: value for key, value in tree.items() if key != "restore"})
    finished: ResumeChoice | None = None
    other: ResumeChoice | None = None
    lost: Path | None = None  # the newest that nothing can be continued from
    for folder in runs_of(parent):
        stored = stored_tree(folder)
        if stored is None:
            continue
        restored = stored.pop("restore", None)
        if settings(stored) != asked:
            other = other or _other(folder, stored, asked)
            continue
        if not _begins_with(restored, source):
            continue
        found = _what_it_offers(folder, stop)
        if found is not None and found.folder is not None and found.done is None:
            passed = None if lost is None else _what_it_offers(lost, stop, f"{folder.name} is continued")
            return found if passed is None else replace(found, note=passed.note)
        if found is not None and found.folder is None:
            lost = lost or folder
        finished = finished or found
    return finished or other or ResumeChoice()


def _what_it_offers(
    folder: Path, stop: Mapping[str, float], instead: str = "a new run is started"
) -> ResumeChoice | None:
    """How a run of the same experiment can be gone on with; else a word about it, and what happens `instead`."""
    summary = newest_summary(folder)
    if summary is None and checkpoints_of(folder):
        return ResumeChoice(note=f"No checkpoint of {folder} can be read; {instead}.")
    if summary is None and finished_iterations(folder):
        return ResumeChoice(folder) if holder(folder) is not None else _without_checkpoint(folder, instead)
    return ResumeChoice(folder, stop_reason(summary or {}, stop))


def _without_checkpoint(folder: Path, instead: str) -> ResumeChoice | None:
    """A word about a run that ended before it saved anything to go on from; its results must not be written over."""
    outcome = read_outcome(folder)
    if outcome is not None and outcome.kind == "stopped":
        return None
    ended = disappearance(folder, "it") if outcome is None else f"It ended with: {outcome.sentence}"
    done = counted(finished_iterations(folder), "finished iteration")
    words = f"{folder} has {done} and no checkpoint to continue from, so {instead}."
    return ResumeChoice(note=f"{words} {ended}" if ended else words)


def _begins_with(restored: str | None, source: Path | None) -> bool:
    """Whether a run took its first policy from where it is asked for: from a checkpoint of `source`, or from none."""
    if restored is None or source is None:
        return restored is None and source is None
    return _is_in(restored, source)


def _is_in(checkpoint: str, source: Path) -> bool:
    """Whether a checkpoint is the source, or one of the run or of the experiment that the source is."""
    return source in (Path(checkpoint), *Path(checkpoint).parents)


def experiment_of(tree: Mapping[str, Any], trust: bool = False) -> tuple[Experiment, UserCode]:
    """The experiment that a run or a checkpoint wrote down, and the user's code that it needs.

    Code that a stranger's run names cannot be loaded, unless the user says `trust`.
    """
    user_code = UserCode((), is_trusted=False)
    if trust or is_own(tree):
        user_code = UserCode(_search_path(tree))
    # The settings of a preset are in the config already; this version may have others, or none of that name.
    said = {key: value for key, value in tree.items() if key not in ("search_path", "preset", MARK)}
    # Whoever wrote none of this key saw Atari games as they are.
    if isinstance(said.get("config"), Mapping):
        said["config"] = {"preprocessor_pref": None, **said["config"]}
        # Its default was another once, which would be refused where it has no effect.
        if said["config"].get("training_intensity") != "auto":
            said["config"].pop("max_overfit_ratio", None)
    return changed(experiment_from(said), preset=tree.get("preset")), user_code


def experiment_to_run(
    tree: Mapping[str, Any], where: Path, trust: bool = False, env_is_given: bool = False
) -> tuple[Experiment, UserCode]:
    """The experiment that a run wrote down and the code for its environments; a stranger's code is refused, and told.

    `env_is_given` says that the user has named the environment too.
    """
    experiment, user_code = experiment_of(tree, trust)
    return experiment, code_to_run(tree, experiment, user_code, where, env_is_given)


def tree_of(experiment: Experiment, user_code: UserCode) -> dict[str, Any]:
    """What `experiment_of` reads back."""
    return marked({**as_tree(experiment), "search_path": list(user_code.folders)})


def stored_tree(folder: Path) -> dict[str, Any] | None:
    """The experiment that a run, or its newest checkpoint, wrote down; None if it cannot be read."""
    with suppress(CheckpointError):
        tree = bounded_json(bounded_bytes(folder / EXPERIMENT_FILE, LIMITS[EXPERIMENT_FILE]), EXPERIMENT_FILE)
        if isinstance(tree, dict):
            return tree
    checkpoint = newest_good(folder)
    return checkpoint.experiment_tree if checkpoint is not None else None


def _search_path(tree: Mapping[str, Any]) -> tuple[str, ...]:
    folders = tree.get("search_path", [])
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise CheckpointError(
            f"search_path must be a list of folders {got(folders)}; the run was not written by shoal."
        )
    return tuple(folders)


def finished_iterations(folder: Path) -> int:
    """The iterations that a run has finished, by its results, or by its outcome if a full disk took no more of them."""
    outcome = read_outcome(folder)
    told = (outcome.iteration if outcome is not None else None) or 0
    with suppress(OSError, ValueError, TypeError, KeyError, IndexError):
        with open_regular(folder / RESULTS_FILE) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LINE_BYTES))
            last = [line for line in file.read().split(b"\n")[:-1] if line][-1]
        return max(told, int(json.loads(last)["training_iteration"]))
    return told


def settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two experiments the same, by dotted key, in JSON's types; what is null is as what is not there."""
    found = by_dotted_key(json.loads(json.dumps(tree)), FREE_KEYS)
    return {key: value for key, value in found.items() if value is not None}


def by_dotted_key(tree: Mapping[str, Any], but: Sequence[str] = (), prefix: str = "") -> dict[str, Any]:
    """The values of a tree by their dotted keys, but for some keys and what stands inside them."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in but:
            continue
        if isinstance(value, Mapping) and value:
            found.update(by_dotted_key(value, but, f"{key}."))
        else:
            found[key] = value
    return found


def with_changes(folder: Path, tree: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tree of a run that goes on with other values at dotted keys, and `key: old -> new` for each that differs."""
    if not changes:
        return dict(tree), []
    body = {key: value for key, value in json.loads(json.dumps(tree)).items() if key not in ("search_path", MARK)}
    problems = apply_overrides(body, changes.items())
    if problems:
        raise ConfigError(problems)
    experiment = experiment_of(tree)[0]
    before = by_dotted_key(as_tree(experiment))
    after = by_dotted_key(as_tree(experiment_of(body)[0]))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    free = (*CHANGEABLE, *(f"config.{key}" for key in type(experiment.config).mutable))
    refused = [key for key in keys if not f"{key}.".startswith(tuple(f"{one}." for one in free))]
    if refused:
        sets = " ".join(f"--set {shlex.quote(f'{key}={typed_value(after.get(key))}')}" for key in refused)
        where = shlex.quote(str(folder))
        raise ConfigError(
            f"{', '.join(refused)}: cannot change in a run that continues: its arrays, environments and random streams "
            "depend on it; start a new run with its policy: "
            f"shoal train -f {where}/config.yaml --restore {where} {sets}"
        )
    told = [f"{key}: {typed_value(before.get(key))} -> {typed_value(after.get(key))}" for key in keys]
    return {**body, "search_path": tree.get("search_path", [])}, told


def typed_value(value: Any) -> str:
    """A value as a person types it after `--set KEY=`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The keys that differ, each with both values."""
    return [
        f"{key}: {there.get(key, 'not set')} there, {here.get(key, 'not set')} here"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]


def _other(folder: Path, stored: Mapping[str, Any], asked: Mapping[str, Any]) -> ResumeChoice:
    """A word about an unfinished run with other settings."""
    if stop_reason(newest_summary(folder) or {}, stored.get("stop") or {}) is not None:
        return ResumeChoice()
    owner = holder(folder)
    if owner is not None and owner.is_this_process:  # another seed, which trains together with this one
        return ResumeChoice()
    keys = differences(settings(stored), asked)
    shown = "; ".join(keys[:5]) + (f"; and {len(keys) - 5} more" if len(keys) > 5 else "")
    busy = f", and {owner} is running it" if owner else ""
    return ResumeChoice(
        note=f"A new run is started, because {folder.name} is unfinished but has other settings ({shown}){busy}."
    )
