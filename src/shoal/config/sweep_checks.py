"""What of a sweep is wrong only together: scheduler, search, stop criteria, settings; and what follows from `stop`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.config.algorithms import ALGORITHMS
from shoal.config.result_names import COUNTERS
from shoal.config.search_spaces import LISTED, Setting, checked_setting, find_settings, space_kind
from shoal.config.sweep_description import Sweep
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS, TuneMethod
from shoal.config.vocabulary import nearest

MUTATIONS = {"pbt": "hyperparam_mutations", "pb2": "hyperparam_bounds"}
"""The schedulers that change settings on the way, and the option that tells which."""
MOST_TRIALS = 100_000


def trial_count(sweep: Sweep) -> int:
    """How many trials a sweep makes: every combination of its grids, so many times, with so many seeds."""
    grids = math.prod(len(setting.args) for setting in sweep.settings if setting.kind == "grid_search")
    return grids * sweep.num_samples * sweep.seeds


def resolved(sweep: Sweep, stop: Mapping[str, float], is_experiment: bool) -> tuple[Sweep, dict[str, float], list[str]]:
    """The sweep with every option of its scheduler, the stop criteria with what those add, and what is wrong."""
    kind, options = sweep.scheduler.type, dict(sweep.scheduler.options)
    known, limits, problems = SCHEDULERS[kind].options, dict(stop), list[str]()
    if not known:
        return sweep, limits, problems
    attr = options.setdefault("time_attr", _time_attr(kind, stop, is_experiment))
    if is_experiment and attr not in COUNTERS:
        close = nearest(attr, COUNTERS)
        hint = f"did you mean {close}?" if close else f"there are {', '.join(COUNTERS)}"
        return sweep, limits, [f"scheduler.time_attr: {attr} does not measure the progress of a trial; {hint}"]
    if "max_t" in known:
        problems += _resolve_max_t(kind, attr, options, limits)
        if problems:
            return sweep, limits, problems
    limit = limits.get(attr)
    if "grace_period" in known:
        problems += _resolve_share("grace_period", attr, options, limit)
    if "min_time_slice" in known:
        options.setdefault("min_time_slice", limit if limit is not None else 1e18)
    if kind in MUTATIONS:
        problems += _resolve_share("perturbation_interval", attr, options, limit)
        found, wrong = mutations(sweep, is_experiment)
        options[MUTATIONS[kind]] = {setting.path: {setting.kind: list(setting.args)} for setting in found}
        problems += wrong
    for name, option in known.items():
        if option.is_given:
            options.setdefault(name, list(option.default) if isinstance(option.default, tuple) else option.default)
    return replace(sweep, scheduler=replace(sweep.scheduler, options=options)), limits, problems


def _time_attr(kind: str, stop: Mapping[str, float], is_experiment: bool) -> str:
    if not SCHEDULERS[kind].options["time_attr"].is_given:
        return next((name for name in COUNTERS if name in stop), COUNTERS[0 if is_experiment else 1])
    return str(SCHEDULERS[kind].options["time_attr"].default)


def _resolve_max_t(kind: str, attr: str, options: dict[str, Any], limits: dict[str, float]) -> list[str]:
    """`max_t` and `stop` say the same thing: how far a trial goes; the one that is missing follows from the other."""
    most, limit = options.get("max_t"), limits.get(attr)
    if most is None and limit is None:
        amount = 100_000 if attr == "timesteps_total" else 81
        return [f"stop: {kind} needs a limit on the length of a trial; set stop: {{{attr}: {amount}}}"]
    others = [name for name in COUNTERS if name in limits]
    if limit is None and others:
        return [
            f"scheduler.max_t: counts {attr}, but stop has {others[0]} alone, so they contradict; "
            f"leave max_t out, or add {attr}: {most:g} to stop"
        ]
    if most is not None and limit is not None and most != limit:
        return [f"scheduler.max_t: is {most:g}, but stop.{attr} is {limit:g}, so they contradict; leave max_t out"]
    options["max_t"] = limits[attr] = _tidy(limit if most is None else most)
    return []


def _resolve_share(name: str, attr: str, options: dict[str, Any], limit: float | None) -> list[str]:
    """An option that is a tenth of the way, if it is not given."""
    given = options.get(name)
    if given is None and limit is None:
        return [f"scheduler.{name}: is missing; give it in {attr}, or set stop: {{{attr}: 100000}}"]
    if given is None:
        assert limit is not None
        options[name] = _tidy(limit / 10 if attr == "time_total_s" else max(limit // 10, 1))
    elif limit is not None and given >= limit:
        return [f"scheduler.{name}: {given:g} is not before the end, which is stop.{attr} {limit:g}; make it smaller"]
    return []


def _tidy(value: float | None) -> float:
    assert value is not None
    return int(value) if float(value).is_integer() else value


def mutations(sweep: Sweep, is_experiment: bool) -> tuple[list[Setting], list[str]]:
    """The settings that a population changes on the way, and what is wrong with them."""
    kind = sweep.scheduler.type
    option = f"scheduler.{MUTATIONS[kind]}"
    given = sweep.scheduler.options.get(MUTATIONS[kind])
    found, problems = list(sweep.settings), list[str]()
    if given is not None:
        tree = {"config": _as_spaces({key.removeprefix("config."): value for key, value in given.items()}, kind)}
        found, problems = find_settings(tree, ("config",))
        plain = [path for path in _leaves(tree) if path not in {setting.path for setting in found}]
        problems += [f"{path}: must be a list of values or a range" for path in plain if not problems]
        problems = [f"{option}.{problem.removeprefix('config.')}" for problem in problems]
    if not found and not problems:
        return [], [
            f"{option}: {kind} has nothing to change during training; put a range into config, e.g. "
            "lr: {loguniform: [1e-5, 1e-2]}"
        ]
    found = [checked_setting(s.path, "choice", s.args) if s.kind == "grid_search" else s for s in found]
    return found, problems + _fixed_settings(sweep, found, kind, is_experiment)


def _fixed_settings(sweep: Sweep, found: list[Setting], kind: str, is_experiment: bool) -> list[str]:
    """A sentence for each setting that a population of this kind cannot change."""
    problems: list[str] = []
    if is_experiment:
        mutable = ALGORITHMS[str(sweep.tree.get("run", "PPO"))].mutable
        problems += [
            f"{setting.path}: cannot change while a run trains, as {kind} would; give it one value, or leave {kind} out"
            for setting in {s.path: s for s in [*sweep.settings, *found]}.values()
            if setting.path.removeprefix("config.") not in mutable
        ]
    if kind == "pb2":
        problems += [
            f"{setting.path}: pb2 takes numbers between two bounds; use uniform or randint, or scheduler: pbt"
            for setting in found
            if setting.kind in (*LISTED, "normal")
        ]
    return problems


def _as_spaces(value: Any, kind: str) -> Any:
    """Mutations in which a list stands for `choice`, or for the bounds of pb2, with the word written out."""
    if space_kind(value) is not None:
        return value
    if isinstance(value, Mapping):
        return {key: _as_spaces(item, kind) for key, item in value.items()}
    return {"choice" if kind == "pbt" else "uniform": value} if isinstance(value, list | tuple) else value


def _leaves(value: Any, path: str = "") -> list[str]:
    if space_kind(value) is not None or not isinstance(value, Mapping):
        return [path]
    return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}".lstrip("."))]


def conflicts(sweep: Sweep, stop: Mapping[str, float], is_experiment: bool, may_be_single: bool = False) -> list[str]:
    """Words that are right by themselves but not together, each with what to say instead."""
    found = [*_search_conflicts(sweep, is_experiment, may_be_single), *_scheduler_conflicts(sweep)]
    if is_experiment and not any(name in stop for name in COUNTERS):
        found.append("stop: has no limit that every trial reaches; add e.g. timesteps_total: 100000")
    if sweep.mode == "min" and sweep.metric in stop:
        found.append(
            f"stop.{sweep.metric}: ends a trial as soon as it is at least {stop[sweep.metric]:g}, and with mode: min "
            "small is good, so they contradict; leave it out"
        )
    if sweep.search_alg.type != "random" or sweep.scheduler.type != "fifo":
        who = sweep.scheduler.type if sweep.scheduler.type != "fifo" else sweep.search_alg.type
        if not sweep.metric:
            found.append(f"metric: is missing; {who} compares trials by it: set metric and mode")
    if (count := trial_count(sweep)) > MOST_TRIALS:
        found.append(f"num_samples: that makes {count} trials, and at most {MOST_TRIALS} are allowed; use fewer grids")
    # Nobody should install a package for a sweep that is refused anyway.
    return found or [
        *_not_installed("scheduler", sweep.scheduler.type, SCHEDULERS),
        *_not_installed("search_alg", sweep.search_alg.type, SEARCHERS),
    ]


def _search_conflicts(sweep: Sweep, is_experiment: bool, may_be_single: bool) -> list[str]:
    search, settings, found = sweep.search_alg.type, sweep.settings, list[str]()
    if search == "random":
        if is_experiment and not (settings or may_be_single or sweep.seeds > 1 or sweep.scheduler.type in MUTATIONS):
            found.append(
                "config: has nothing to search; write e.g. lr: {loguniform: [1e-5, 1e-2]}, or use `shoal train`"
            )
        elif (
            is_experiment
            and sweep.num_samples > 1
            and sweep.scheduler.type not in MUTATIONS
            and all(setting.kind == "grid_search" for setting in settings)
        ):
            found.append(
                f"num_samples: nothing is drawn, so {sweep.num_samples} samples would be the same; set seeds: "
                f"{sweep.num_samples} for other seeds, or a range in place of a grid"
            )
        return found
    if not settings:
        found.append(
            f"search_alg: {search} has nothing to search; write e.g. lr: {{loguniform: [1e-5, 1e-2]}} in config"
        )
    for setting in settings:
        if setting.kind not in SEARCHERS[search].kinds:
            found.append(f"{setting.path}: {search} cannot search {setting.kind}; use {_instead(setting.kind, search)}")
    return found


def _instead(kind: str, search: str) -> str:
    if kind == "normal":
        return "uniform: [low, high]"
    if kind == "grid_search" and "choice" in SEARCHERS[search].kinds:
        return "choice in place of grid_search, or search_alg: random"
    return "a range of numbers, or search_alg: optuna"


def _scheduler_conflicts(sweep: Sweep) -> list[str]:
    kind, search, found = sweep.scheduler.type, sweep.search_alg.type, list[str]()
    if kind in MUTATIONS and search != "random":
        found.append(
            f"search_alg: {search} chooses settings once, and {kind} changes them during training; leave one out"
        )
    elif kind == "bohb" and search != "bohb":
        found.append("scheduler: bohb works only with search_alg: bohb; set both, or scheduler: hyperband")
    elif search == "bohb" and kind != "bohb":
        found.append("search_alg: bohb works only with scheduler: bohb; set both, or search_alg: optuna")
    if kind in MUTATIONS and trial_count(sweep) // sweep.seeds < 2:
        found.append(f"num_samples: {kind} is a population of at least 2 trials; set num_samples: 8")
    if sweep.seeds > 1 and kind != "fifo":
        why = "copies one trial into another" if kind in MUTATIONS else "stops single seeds of a configuration early"
        found.append(f"seeds: {kind} {why}, so their mean is not comparable; leave one of them out")
    return found


def _not_installed(key: str, name: str, table: Mapping[str, TuneMethod]) -> list[str]:
    """What is missing for a scheduler or searcher, and how to install it."""
    needed = table[name]
    install = f"type pip install 'shoal-rl[{needed.extra}]'"
    if needed.module and importlib.util.find_spec(needed.module) is None:
        return [f"{key}: {name} needs {needed.module}, which is not installed; {install}"]
    if needed.below:
        package, major, minor = needed.below
        version = importlib.metadata.version(package)
        if tuple(int(part) for part in version.split(".")[:2]) >= (major, minor):
            return [f"{key}: {name} does not work with {package} {version}; {install}, which has an older one"]
    return []
