"""Search spaces in Ray's terms, and what Ray chose in ours.

Ray's searchers differ in what they take: some know no logarithms, some no whole numbers, most no lists or null among
choices. So all but the random search get numbers and texts that every one of them takes; `settings_of` reads them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from shoal.config.experiment import json_value
from shoal.config.search_spaces import KINDS, LISTED, Setting, extremes, fitted
from shoal.config.sweep import Sweep, mutated

SEED = "seed"
"""The key beside the settings that tells a trial its seed; no path of a setting has this form."""
REPEAT = "__trial_index__"
"""The key by which Ray's `Repeater` counts the trials of one configuration (`ray.tune.search.repeater.TRIAL_INDEX`)."""
FLAT_SEARCHES = ("bayesopt",)
"""Searchers that know floats between two bounds and nothing else."""
AS_TEXT, AS_LOG = "text:", "log:"
"""What stands before the path of a setting whose choices go to Ray as JSON, or whose number goes as its logarithm."""


def param_space(sweep: Sweep) -> dict[str, Any]:
    """What Ray chooses from: paths of settings to Ray's domains; constants where a population begins with one value."""
    search = sweep.search_alg.type
    space = dict(_entry(setting, search) for setting in sweep.settings)
    for setting in mutated(sweep):
        if setting.path not in space:
            space[setting.path] = _value_at(sweep.tree, setting.path, ray_domain(setting))
    if sweep.seeds > 1 and search == "random":
        space[SEED] = {"grid_search": [first_seed(sweep) + k for k in range(sweep.seeds)]}
    return space


def settings_of(sweep: Sweep, config: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """What was chosen for a trial, in plain types, and its seed if there are several; from the config Ray has of it."""
    values: dict[str, Any] = {}
    for setting in {s.path: s for s in (*mutated(sweep), *sweep.settings)}.values():
        path = setting.path
        if path in config:
            values[path] = fitted(setting, config[path])
        elif AS_TEXT + path in config:
            values[path] = json.loads(str(config[AS_TEXT + path]))
        elif AS_LOG + path in config:
            values[path] = fitted(setting, math.exp(config[AS_LOG + path]))
    if sweep.seeds == 1:
        return values, None
    return values, int(config[SEED]) if SEED in config else first_seed(sweep) + int(config[REPEAT])


def first_seed(sweep: Sweep) -> int:
    """The seed of the experiment itself, with which its trials begin to count."""
    seed = (sweep.tree.get("config") or {}).get("seed", 0)
    return seed if isinstance(seed, int) else 0


def ray_domain(setting: Setting) -> Any:
    """The setting as Ray writes it."""
    from ray import tune

    if setting.kind in LISTED:
        values = list(setting.args)
        return {"grid_search": values} if setting.kind == "grid_search" else tune.choice(values)
    return getattr(tune, "randn" if setting.kind == "normal" else setting.kind)(*setting.args)


def _entry(setting: Setting, search: str) -> tuple[str, Any]:
    """The key and the domain of a setting, as the searcher can take it."""
    path, kind = setting.path, KINDS[setting.kind]
    if search == "random" or setting.kind == "normal":
        return path, ray_domain(setting)
    from ray import tune

    if setting.kind in LISTED:
        return AS_TEXT + path, tune.choice([json.dumps(json_value(value, path)) for value in setting.args])
    low, high = extremes(setting)
    if search in FLAT_SEARCHES:
        return (
            (AS_LOG + path, tune.uniform(math.log(low), math.log(high)))
            if kind.is_log
            else (path, tune.uniform(low, high))
        )
    if kind.is_whole:
        return path, (tune.lograndint if kind.is_log else tune.randint)(low, high + 1)
    return path, (tune.loguniform if kind.is_log else tune.uniform)(low, high)


def _value_at(tree: Mapping[str, Any], path: str, default: Any) -> Any:
    """What the user has written at a path."""
    here: Any = tree
    for name in path.split("."):
        if not isinstance(here, Mapping) or name not in here:
            return default
        here = here[name]
    return here
