"""A simulation before it meets a policy: making it, its spaces, stepping many of it, checking it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.envs.case_env import CaseEnv
    from shoal.envs.faults import FaultEnv
    from shoal.envs.gtp import GtpEngine
    from shoal.envs.mpi import mpi_command, run_mpi

__all__ = ["CaseEnv", "FaultEnv", "GtpEngine", "mpi_command", "run_mpi"]

MODULES = {
    "CaseEnv": "shoal.envs.case_env",
    "FaultEnv": "shoal.envs.faults",
    "GtpEngine": "shoal.envs.gtp",
    "mpi_command": "shoal.envs.mpi",
    "run_mpi": "shoal.envs.mpi",
}


def __getattr__(name: str) -> Any:
    """What users import from here, when they do; other parts of shoal name the module they need."""
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
