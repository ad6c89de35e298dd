"""Many runs: Ray Tune's schedulers and searchers over experiments or functions of the user's own.

Names are imported when they are first used: reading a sweep's records needs no Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.tune.search_functions import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    normal,
    qloguniform,
    qrandint,
    quniform,
    randint,
    sample_from,
    uniform,
)

if TYPE_CHECKING:
    from shoal.envs.registry import register_env
    from shoal.reports.analysis import Analysis
    from shoal.tune import schedulers, suggest
    from shoal.tune.api import run
    from shoal.tune.report_function import report

_HOMES = {
    "Analysis": "reports.analysis",
    "register_env": "envs.registry",
    "report": "tune.report_function",
    "run": "tune.api",
}
_MODULES = ("schedulers", "suggest")

__all__ = [
    "Analysis",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "normal",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "register_env",
    "report",
    "run",
    "sample_from",
    "schedulers",
    "suggest",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"shoal.tune.{name}")
    if name not in _HOMES:
        from shoal.config.foreign_names import missing

        raise missing("shoal.tune", name, __all__)
    return getattr(import_module(f"shoal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
