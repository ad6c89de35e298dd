"""The functions for search spaces in Python, and the options of schedulers and searchers: each gives a file's mapping.

>>> grid_search([1, 2])
{'grid_search': [1, 2]}
>>> loguniform(1e-5, 1e-2)
{'loguniform': [1e-05, 0.01]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from shoal.errors import ConfigError

Space = dict[str, list[Any]]
MethodOptions = dict[str, Any]


def grid_search(values: Iterable[Any]) -> Space:
    """Each of these values, combined with each value of every other grid."""
    return {"grid_search": list(values)}


def choice(values: Iterable[Any]) -> Space:
    """One of these values, each as likely."""
    return {"choice": list(values)}


def uniform(low: float, high: float) -> Space:
    """A number between these."""
    return {"uniform": [low, high]}


def loguniform(low: float, high: float) -> Space:
    """A number between these, all powers of ten equally likely."""
    return {"loguniform": [low, high]}


def quniform(low: float, high: float, step: float) -> Space:
    """A number between these, in steps."""
    return {"quniform": [low, high, step]}


def qloguniform(low: float, high: float, step: float) -> Space:
    """A number between these, all powers of ten equally likely, in steps."""
    return {"qloguniform": [low, high, step]}


def randint(low: int, high: int) -> Space:
    """A whole number from low to high - 1."""
    return {"randint": [low, high]}


def lograndint(low: int, high: int) -> Space:
    """A whole number from low to high - 1, all powers of ten equally likely."""
    return {"lograndint": [low, high]}


def qrandint(low: int, high: int, step: int) -> Space:
    """A whole number from low to high, in steps."""
    return {"qrandint": [low, high, step]}


def normal(mean: float, sd: float) -> Space:
    """A number around the mean, with this standard deviation."""
    return {"normal": [mean, sd]}


def sample_from(function: Callable[..., Any]) -> NoReturn:  # noqa: ARG001
    """Refused: what a function draws can be neither checked beforehand nor written down."""
    raise ConfigError(
        "sample_from: what a function draws can be neither checked nor written down; use shoal.tune.choice, uniform, "
        "loguniform or randint, or compute the values and give them to shoal.tune.choice"
    )


def checked_options(key: str, name: str, /, *unnamed: Any, **options: Any) -> MethodOptions:
    """The mapping of a scheduler or searcher with its options; a ConfigError says which of them are wrong, and why."""
    from shoal.config.problems import got
    from shoal.config.sweep_options import SCHEDULERS, SEARCHERS, chosen_options

    if unnamed:
        raise ConfigError(f"{key}: {name} takes its options by their names {got(unnamed[0])}")
    table = SCHEDULERS if key == "scheduler" else SEARCHERS
    _, checked, problems = chosen_options(key, {"type": name, **options}, table)
    if problems:
        raise ConfigError([_in_python(problem) for problem in problems])
    return {"type": name, **checked}


def _in_python(problem: str) -> str:
    """A problem of a file in the words of a program."""
    return problem.replace(" belongs beside stop", " goes to shoal.tune.run itself, beside stop")
