"""Many runs: Ray Tune's schedulers and searchers over experiments or functions of the user's own.

Names are imported when they are first used: reading a sweep's records needs no Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.tune.analysis import Analysis
    from shoal.tune.calling import run
    from shoal.tune.reporting import report

_HOMES = {"Analysis": "analysis", "report": "reporting", "run": "calling"}

__all__ = ["Analysis", "report", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal.tune' has no attribute {name!r}")
    return getattr(import_module(f"shoal.tune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
