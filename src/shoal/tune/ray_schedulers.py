"""Ray Tune's schedulers, made from a sweep."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from shoal.config.search_spaces import LISTED, Setting, extremes, fitted
from shoal.config.sweep import Sweep, mutated
from shoal.config.sweep_checks import MUTATIONS
from shoal.config.sweep_options import SCHEDULERS
from shoal.tune.ray_classes import ray_class
from shoal.tune.ray_spaces import ray_domain

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler


def make_scheduler(sweep: Sweep) -> TrialScheduler:
    """The sweep's scheduler, as Ray wants it."""
    kind = sweep.scheduler.type
    options = dict(sweep.scheduler.options)
    if kind != "fifo":
        options |= {"metric": sweep.metric, "mode": sweep.mode}
    if kind == "asha":
        # A trial that reaches the end is ended by its own criterion, and then it is finished, not stopped early.
        options["stop_last_trials"] = False
    if kind in MUTATIONS:
        changed = mutated(sweep)
        options[MUTATIONS[kind]] = {setting.path: _mutation(setting, kind) for setting in changed}
        # Ray multiplies by its factors without a look at the bounds.
        options["custom_explore_fn"] = functools.partial(within_bounds, changed)
        options["log_config"] = False
        options["require_attrs"] = False
    if "perturbation_factors" in options:
        options["perturbation_factors"] = tuple(options["perturbation_factors"])
    made: TrialScheduler = ray_class(SCHEDULERS[kind])(**options)
    return made


def within_bounds(settings: tuple[Setting, ...], config: dict[str, Any]) -> dict[str, Any]:
    """The config with every changed setting as near to its new value as its range has one."""
    return {**config, **{s.path: fitted(s, config[s.path]) for s in settings if s.path in config}}


def _mutation(setting: Setting, kind: str) -> Any:
    if kind == "pb2":
        return [float(end) for end in extremes(setting)]
    # Ray takes `tune.choice` for a range of numbers; a list is what it shifts along.
    return list(setting.args) if setting.kind in LISTED else ray_domain(setting)
