"""Every scheduler and searcher that a sweep may name, with its options: Ray Tune's own, under Ray's names for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.config.fields import flag, number, text, whole
from shoal.config.problems import got, printable
from shoal.config.vocabulary import nearest


@dataclass(frozen=True)
class Option:
    """One option: its check, its default (or in words where that comes from), and what it means."""

    check: Callable[[Any], Any]
    default: Any
    type: str
    meaning: str
    is_given: bool = True
    """Whether the default is the value itself, and not words about it."""


@dataclass(frozen=True)
class TuneMethod:
    """A scheduler or a searcher: Ray's class, its options, and the pip extra with what it needs."""

    ray_class: str
    meaning: str
    options: Mapping[str, Option] = field(default_factory=dict)
    module: str = ""
    """The package that it needs beside Ray."""
    extra: str = ""
    """The extra of shoal that installs it."""
    below: tuple[str, int, int] | None = None
    """That package's name, and the first version of it that Ray cannot use."""
    kinds: tuple[str, ...] = ()
    """A searcher's ways to choose a value; none named: all."""


def above(least: float) -> Callable[[Any], float]:
    """A check for a number above `least`."""

    def check(value: Any) -> float:
        result = number(value)
        if result <= least:
            raise ValueError(f"must be more than {least:g}")
        return result if not result.is_integer() else int(result)

    return check


def between(low: float, high: float) -> Callable[[Any], float]:
    """A check for a number from `low` to `high`."""

    def check(value: Any) -> float:
        result = number(value)
        if not low <= result <= high:
            raise ValueError(f"must be from {low:g} to {high:g}")
        return result

    return check


def at_least(least: int) -> Callable[[Any], int]:
    """A check for a whole number."""

    def check(value: Any) -> int:
        result = whole(value)
        if result < least:
            raise ValueError(f"must be at least {least}")
        return result

    return check


def _factors(value: Any) -> list[float]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a list of factors such as [1.2, 0.8]")
    return [above(0)(item) for item in value]


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("must be a mapping of config's keys to values, e.g. {lr: {loguniform: [1e-5, 1e-2]}}")
    return dict(value)


_TIME = Option(text, "the one in stop", "text", "result that measures the progress of a trial", False)
_ITERATIONS = Option(text, "training_iteration", "text", "result that measures the progress of a trial")
_MAX_T = Option(above(0), "from stop", "number > 0", "length of a trial, in time_attr", False)
_GRACE = Option(above(0), "a tenth of max_t", "number > 0", "progress of a trial before it may be stopped", False)
_INTERVAL = Option(
    above(0),
    "a tenth of stop's limit",
    "number > 0",
    "progress of a trial between two exploits, in time_attr",
    False,
)
_QUANTILE = Option(
    between(0, 0.5),
    0.25,
    "number from 0 to 0.5",
    "share of the worst trials that copy, and of the best that are copied",
)
_SYNCH = Option(flag, False, "true or false", "whether trials wait for each other at every interval")
_HYPERBAND = {
    "time_attr": _ITERATIONS,
    "max_t": _MAX_T,
    "reduction_factor": Option(above(1), 3, "number > 1", "one of this many trials continues"),
}

SCHEDULERS: Mapping[str, TuneMethod] = {
    "fifo": TuneMethod("ray.tune.schedulers:FIFOScheduler", "every trial trains until its stop"),
    "asha": TuneMethod(
        "ray.tune.schedulers:AsyncHyperBandScheduler",
        "stops bad trials early, without waiting for others (recommended)",
        {
            "time_attr": _TIME,
            "max_t": _MAX_T,
            "grace_period": _GRACE,
            "reduction_factor": Option(above(1), 4, "number > 1", "one of this many trials continues"),
            "brackets": Option(
                at_least(1), 1, "whole number >= 1", "number of groups of trials, each with a later first cut"
            ),
        },
    ),
    "hyperband": TuneMethod(
        "ray.tune.schedulers:HyperBandScheduler",
        "stops bad trials early, in rounds that wait for each other",
        _HYPERBAND,
    ),
    "median": TuneMethod(
        "ray.tune.schedulers:MedianStoppingRule",
        "stops a trial whose best is worse than the median of the others' means",
        {
            "time_attr": _TIME,
            "grace_period": _GRACE,
            "min_samples_required": Option(at_least(1), 3, "whole number >= 1", "number of trials needed for a median"),
            "min_time_slice": Option(
                above(0), "never", "number > 0", "progress of a trial before it yields to a waiting one", False
            ),
            "hard_stop": Option(flag, True, "true or false", "false pauses such a trial until all others are done"),
        },
    ),
    "pbt": TuneMethod(
        "ray.tune.schedulers:PopulationBasedTraining",
        "population based training: bad trials copy good ones, and change their settings, during training",
        {
            "time_attr": _TIME,
            "perturbation_interval": _INTERVAL,
            "burn_in_period": Option(
                between(0, 1e18), 0, "number >= 0", "progress of a trial before its first exploit"
            ),
            "hyperparam_mutations": Option(
                _mapping,
                "the search space",
                "mapping",
                "keys of config that change, with their values or ranges",
                False,
            ),
            "quantile_fraction": _QUANTILE,
            "resample_probability": Option(
                between(0, 1),
                0.25,
                "number from 0 to 1",
                "probability that a setting is drawn again instead of perturbed",
            ),
            "perturbation_factors": Option(_factors, (1.2, 0.8), "list of numbers", "factors of a perturbation"),
            "synch": _SYNCH,
        },
    ),
    "pb2": TuneMethod(
        "ray.tune.schedulers.pb2:PB2",
        "as pbt, but a Gaussian process chooses the new settings; for few trials",
        {
            "time_attr": _TIME,
            "perturbation_interval": _INTERVAL,
            "hyperparam_bounds": Option(
                _mapping, "the search space", "mapping", "keys of config that change, each with [low, high]", False
            ),
            "quantile_fraction": _QUANTILE,
            "synch": _SYNCH,
        },
        module="sklearn",
        extra="pb2",
    ),
    "bohb": TuneMethod(
        "ray.tune.schedulers:HyperBandForBOHB", "hyperband for search_alg: bohb", _HYPERBAND, "hpbandster", "bohb"
    ),
}
"""What `scheduler` may be."""

_SEED = Option(at_least(0), "the experiment's seed", "whole number >= 0", "seed of the search itself", False)
_NUMBERS = ("uniform", "loguniform", "quniform", "qloguniform", "randint", "lograndint", "qrandint")
_WITHOUT_GRID = (*_NUMBERS, "choice")

SEARCHERS: Mapping[str, TuneMethod] = {
    "random": TuneMethod(
        "ray.tune.search:BasicVariantGenerator",
        "grids in full, and num_samples random draws of the rest",
        {"seed": _SEED},
    ),
    "optuna": TuneMethod(
        "ray.tune.search.optuna:OptunaSearch",
        "Optuna's tree of Parzen estimators (TPE); takes everything but normal",
        {
            "seed": _SEED,
            "n_startup_trials": Option(
                at_least(1), 10, "whole number >= 1", "number of random trials before it begins to learn"
            ),
        },
        module="optuna",
        extra="tune",
        kinds=_WITHOUT_GRID,
    ),
    "hyperopt": TuneMethod(
        "ray.tune.search.hyperopt:HyperOptSearch",
        "HyperOpt's TPE",
        {
            "seed": _SEED,
            "n_initial_points": Option(
                at_least(1), 20, "whole number >= 1", "number of random trials before it begins to learn"
            ),
            "gamma": Option(
                between(0.01, 0.99), 0.25, "number from 0.01 to 0.99", "share of trials that count as good"
            ),
        },
        module="hyperopt",
        extra="hyperopt",
        kinds=(*_WITHOUT_GRID, "normal"),
    ),
    "bayesopt": TuneMethod(
        "ray.tune.search.bayesopt:BayesOptSearch",
        "Bayesian optimisation by a Gaussian process, for numbers",
        {
            "seed": _SEED,
            "random_search_steps": Option(
                at_least(1), 10, "whole number >= 1", "number of random trials before it begins to learn"
            ),
        },
        module="bayes_opt",
        extra="bayesopt",
        below=("bayesian-optimization", 2, 0),
        kinds=_NUMBERS,
    ),
    "bohb": TuneMethod(
        "ray.tune.search.bohb:TuneBOHB",
        "Bayesian optimisation and HyperBand, with scheduler: bohb",
        {"seed": _SEED},
        module="hpbandster",
        extra="bohb",
        kinds=_WITHOUT_GRID,
    ),
    "nevergrad": TuneMethod(
        "ray.tune.search.nevergrad:NevergradSearch",
        "Nevergrad's evolutionary and other optimisers",
        {"seed": _SEED, "optimizer": Option(text, "NGOpt", "text", "which of its optimisers")},
        module="nevergrad",
        extra="nevergrad",
        kinds=_WITHOUT_GRID,
    ),
    "ax": TuneMethod(
        "ray.tune.search.ax:AxSearch",
        "Bayesian optimisation by Ax and BoTorch (large: needs PyTorch)",
        {"seed": _SEED},
        module="ax",
        extra="ax",
        below=("ax-platform", 1, 3),
        kinds=_WITHOUT_GRID,
    ),
}
"""What `search_alg` may be."""

REFUSED: Mapping[str, str] = {
    "hebo": "HEBO needs a NumPy older than the one that Ray's own packages need; use optuna",
    "zoopt": "ZOOpt suggests nothing more after its first few trials with this Ray; use optuna",
    "sigopt": "SigOpt no longer exists; use optuna",
    "dragonfly": "Ray has dropped Dragonfly; use optuna",
    "skopt": "Ray has dropped scikit-optimize; use bayesopt or optuna",
    "flaml": "Ray has dropped FLAML; use optuna",
    "cfo": "Ray has dropped FLAML; use optuna",
    "blendsearch": "Ray has dropped FLAML; use optuna",
    "resource_changing": "the cores of a trial do not change while it runs; leave it out",
}
"""Names of schedulers and searchers that Ray has or had, and why they are not among ours."""

FOREIGN: Mapping[str, str] = {
    "tpe": "optuna",
    "grid": "random",
    "grid_search": "random",
    "random_search": "random",
    "bayesian": "bayesopt",
    "basic": "random",
    "variant_generator": "random",
    "async_hyperband": "asha",
    "asynchyperband": "asha",
    "ashascheduler": "asha",
    "median_stopping": "median",
    "median_stopping_rule": "median",
    "medianstopping": "median",
    "population_based_training": "pbt",
    "hb_bohb": "bohb",
}
"""Other words for them."""


def chosen_options(key: str, value: Any, table: Mapping[str, TuneMethod]) -> tuple[str, dict[str, Any], list[str]]:
    """The name, the given options and the problems of `asha` or `{type: asha, grace_period: 2}`."""
    given: Mapping[str, Any] = {"type": value} if isinstance(value, str) else value
    example = "asha" if key == "scheduler" else "optuna"
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        return "", {}, [f"{key}: must be a name or a mapping such as {{type: {example}}} {got(value)}"]
    name = given["type"].strip()
    if name not in table:
        reason = REFUSED.get(name.lower())
        close = FOREIGN.get(name.lower().replace("-", "_")) or nearest(name, table)
        close = close if close in table else None
        hint = reason or (f"did you mean {close}?" if close else f"there are {', '.join(table)}")
        return "", {}, [f"{key}: there is no {printable(name)}; {hint}"]
    options: dict[str, Any] = {}
    problems: list[str] = []
    known = table[name].options
    for option, setting in given.items():
        path = f"{key}.{printable(str(option))}"
        if option == "type":
            continue
        if option not in known:
            problems.append(f"{path}: unknown option of {name}{_option_hint(str(option), name, table)}")
            continue
        try:
            options[str(option)] = known[option].check(setting)
        except ValueError as error:
            problems.append(f"{path}: {error} {got(setting)}")
    return name, options, problems


def _option_hint(option: str, name: str, table: Mapping[str, TuneMethod]) -> str:
    if option in ("metric", "mode"):
        return f"; {option} belongs beside stop"
    if option in ("max_concurrent", "max_concurrent_trials"):
        return "; max_concurrent_trials belongs beside stop"
    known = table[name].options
    if close := nearest(option, known):
        return f"; did you mean {close}?"
    return f"; it has {', '.join(known)}" if known else "; it has none"
