"""A simulation before it meets a policy: making it, its spaces, stepping many of it, checking it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.envs.faults import FaultEnv

__all__ = ["FaultEnv"]


def __getattr__(name: str) -> Any:
    """What users import from here; other parts of shoal name the module they need."""
    if name == "FaultEnv":
        from shoal.envs.faults import FaultEnv

        return FaultEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
