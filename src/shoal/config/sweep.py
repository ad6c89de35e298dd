"""What the user says about many runs: which values to try, how often, by which search, and what is best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from shoal.config.experiment import (
    Experiment,
    apply_overrides,
    copied,
    experiment_from,
    folder_name,
    from_file,
    json_value,
    unique,
    with_env_in_config,
)
from shoal.config.fields import MAX_SIZE, text, whole
from shoal.config.overrides import Override
from shoal.config.presets import fold_preset
from shoal.config.problems import got, printable
from shoal.config.result_names import is_result_name, result_hint
from shoal.config.search_spaces import Setting as Setting
from shoal.config.search_spaces import combinations, find_settings, space_kind
from shoal.config.stop_criteria import limit_of
from shoal.config.sweep_checks import MUTATIONS, conflicts, resolved
from shoal.config.sweep_checks import trial_count as trial_count
from shoal.config.sweep_description import MethodChoice as MethodChoice
from shoal.config.sweep_description import Mode as Mode
from shoal.config.sweep_description import Sweep as Sweep
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS, TuneMethod, chosen_options
from shoal.config.vocabulary import SWEEP_KEYS, key_hint, nearest
from shoal.config.yaml_files import dump_yaml, schema_line
from shoal.errors import ConfigError

MOST_CHECKS = 500
"""Combinations of settings that are tried as experiments, each in about a millisecond, before any trial starts."""


def sweeps_from_file(path: str | Path, overrides: Iterable[Override] = ()) -> list[Sweep]:
    """The sweeps of a YAML file: each has its name on top and its keys under it."""
    return from_file(path, overrides, sweep_from)


def sweep_from(
    tree: Mapping[str, Any],
    overrides: Iterable[Override] = (),
    check_experiment: bool = True,
    may_be_single: bool = False,
) -> Sweep:
    """A checked sweep from the tree of an experiment with search spaces in it, and the sweep's keys beside `stop`.

    Without `check_experiment` the tree is that of a user's function, whose config is free. With `may_be_single` there
    need be nothing to search: then there is one trial, or with `num_samples` as many that differ in the seed.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the sweep must be a mapping with env, run, stop and config {got(tree)}")
    body, problems = with_env_in_config(tree)
    problems += apply_overrides(body, overrides, SWEEP_KEYS)
    words = {key: body.pop(key) for key in SWEEP_KEYS if key in body}
    if check_experiment and not any(space_kind(one) for one in (body["config"].get("env"), body.get("run"))):
        problems += fold_preset(body)  # now, so that it is the same for all trials also where the sweep is resumed
    settings, wrong = find_settings(body) if check_experiment else find_settings(body, ("config",))
    sweep, misspelt = _with_words(
        Sweep(str(body.get("name", "default")), body, tuple(settings)), words, check_experiment
    )
    problems += wrong + misspelt
    if may_be_single and not settings and sweep.search_alg.type == "random" and sweep.scheduler.type == "fifo":
        sweep = replace(sweep, num_samples=1, seeds=sweep.num_samples * sweep.seeds)
    stop: dict[str, float] | None
    if check_experiment:
        # Where a search space is wrong itself, the rest of the experiment is checked with the key left at its default.
        stop, wrong = _checked_experiments(sweep, [problem.partition(": ")[0] for problem in wrong])
    else:
        stop, wrong = _stop_of_function(body)
    problems += wrong
    if stop is None:
        raise ConfigError(unique(problems))
    full, stop, wrong = resolved(sweep, stop, check_experiment)
    problems += wrong
    problems += conflicts(full, stop, check_experiment, may_be_single) if not problems else []
    if not problems and check_experiment:
        problems += _checked_mutations(full)
    if problems:
        raise ConfigError(unique(problems))
    return replace(full, tree={**full.tree, "stop": stop} if stop else full.tree)


def experiment_with(sweep: Sweep, settings: Mapping[str, Any], seed: int | None) -> Experiment:
    """The experiment of one trial: the sweep's, with these values in the places of its settings."""
    return experiment_from(tree_with(sweep, settings, seed))


def tree_with(sweep: Sweep, settings: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """The tree of one trial's experiment, which may be a user's function's."""
    return _filled(sweep.tree, {**settings, **({} if seed is None else {"config.seed": seed})})


def sweep_tree(sweep: Sweep) -> dict[str, Any]:
    """The sweep in JSON's types; `sweep_of` reads it back."""
    tree: dict[str, Any] = json_value(asdict(sweep), "sweep")
    return tree


def sweep_yaml(sweep: Sweep) -> str:
    """The sweep as the text of a file, with what it left to defaults; `sweeps_from_file` reads it back."""
    body = {key: value for key, value in sweep_tree(sweep)["tree"].items() if key != "name"}
    for key in SWEEP_KEYS:
        value = getattr(sweep, key)
        body[key] = {"type": value.type, **value.options} if isinstance(value, MethodChoice) else value
    written: dict[str, Any] = {key: value for key, value in body.items() if value not in (None, "")}
    return schema_line() + dump_yaml({sweep.name: json_value(written, "sweep")})


def sweep_of(tree: Mapping[str, Any]) -> Sweep:
    """The sweep that `sweep_tree` wrote down."""
    settings = tuple(Setting(item["path"], item["kind"], tuple(item["args"])) for item in tree["settings"])
    parts = {key: MethodChoice(tree[key]["type"], tree[key]["options"]) for key in ("scheduler", "search_alg")}
    return Sweep(**{**tree, "settings": settings, **parts})


def mutated(sweep: Sweep) -> tuple[Setting, ...]:
    """The settings that a population changes on the way; none without one."""
    given = sweep.scheduler.options.get(MUTATIONS.get(sweep.scheduler.type, ""), {})
    return tuple(Setting(path, kind, tuple(args)) for path, space in given.items() for kind, args in space.items())


def _filled(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tree with values at dotted paths."""
    body: dict[str, Any] = copied(dict(tree))
    for path, value in values.items():
        *parents, last = path.split(".")
        here = body
        for name in parents:
            here = here.setdefault(name, {})
        here[last] = copied(value)
    return body


def _checked_experiments(sweep: Sweep, wrong: list[str]) -> tuple[dict[str, float] | None, list[str]]:
    """The stop criteria of the experiments (None if none of these is right), and what is wrong with any of them."""
    problems: list[str] = []
    stop: dict[str, float] | None = None
    tree = _without(sweep.tree, wrong)
    for values in combinations(sweep.settings, MOST_CHECKS):
        try:
            experiment = experiment_from(_filled(tree, values))
        except ConfigError as error:
            problems += error.problems
        else:
            stop = dict(experiment.stop)
            if sweep.metric.startswith("evaluation/") and experiment.config.evaluation_interval is None:
                problems.append("metric: there is no evaluation; set config.evaluation_interval too")
    return stop, unique(problems)


def _without(tree: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """A copy of the tree without what stands at some paths."""
    body: dict[str, Any] = copied(dict(tree))
    for path in paths:
        *parents, last = path.split(".")
        here = body
        for name in parents:
            here = here.get(name, {})
        here.pop(last, None)
    return body


def _checked_mutations(sweep: Sweep) -> list[str]:
    """What is wrong with values that settings may change to, but not begin with."""
    own = {setting.path for setting in sweep.settings}
    added = [setting for setting in mutated(sweep) if setting.path not in own]
    return _checked_experiments(replace(sweep, settings=(*sweep.settings, *added)), [])[1] if added else []


def _stop_of_function(body: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """The stop criteria of a user's function, whose results have any names, and what is wrong with its tree."""
    stop = body.get("stop") or {}
    known = ("name", "config", "stop", "results_dir")
    problems = [
        f"{printable(str(key))}: unknown key{key_hint(str(key), (*known, *SWEEP_KEYS))}; a function has config and stop"
        for key in body
        if key not in known
    ]
    if not isinstance(stop, Mapping):
        return {}, [f"stop: must be a mapping such as {{training_iteration: 10}} {got(stop)}"]
    limits: dict[str, float] = {}
    for name, limit in stop.items():
        try:
            limits[str(name)] = limit_of(str(name), limit)
        except ValueError as error:
            problems.append(f"stop.{printable(str(name))}: {error} {got(limit)}")
    try:
        folder_name(text(body.get("name", "default")))
    except ValueError as error:
        problems.append(f"name: {error} {got(body['name'])}")
    return limits, problems


def _with_words(sweep: Sweep, words: Mapping[str, Any], is_experiment: bool) -> tuple[Sweep, list[str]]:
    """The sweep with its own keys, and what is wrong with them."""
    problems: list[str] = []
    given: dict[str, Any] = {}
    for key in ("num_samples", "seeds", "max_concurrent_trials"):
        value = words.get(key)
        if value is None:
            continue
        try:
            given[key] = whole(value)
        except ValueError as error:
            problems.append(f"{key}: {error} {got(value)}")
        else:
            if not 1 <= given[key] <= MAX_SIZE:
                problems.append(f"{key}: must be at least 1 {got(value)}")
                given.pop(key)
    for key, table in _TABLES.items():
        if words.get(key) is not None:
            name, options, wrong = chosen_options(key, words[key], table)
            problems += wrong
            given[key] = MethodChoice(name, options) if name else getattr(sweep, key)
    metric, mode = words.get("metric"), words.get("mode")
    if not is_experiment:
        given["metric"] = ""
    if metric is not None:
        name = metric if isinstance(metric, str) and metric.strip() else ""
        if not name or (is_experiment and not is_result_name(printable(name))):
            problems.append(f"metric: no result has this name {got(metric)}{result_hint(printable(str(metric)))}")
        elif mode is None:
            problems.append(f"mode: is missing; set max if the largest {name} is the best, or min if the smallest is")
        given["metric"] = name
    if mode is not None:
        given["mode"] = mode
        if mode not in ("max", "min"):
            close = nearest(str(mode), ("max", "min"))
            problems.append(f"mode: must be max or min {got(mode)}" + (f"; did you mean {close}?" if close else ""))
    return replace(sweep, **given), problems


_TABLES: dict[str, Mapping[str, TuneMethod]] = {"scheduler": SCHEDULERS, "search_alg": SEARCHERS}
