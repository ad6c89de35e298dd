"""Every exception that shoal raises on purpose.

ShoalError
├── ConfigError        something the user said is wrong; all problems are listed at once
├── EnvError           an environment cannot be made, or failed too often
├── CheckpointError    a checkpoint cannot be written, read or trusted
├── CallbackError      a hook of the user's, or their env_task_fn, failed
├── WorkerError        a worker process is lost or cannot be started
└── ClusterError       hosts, launchers, Ray itself

A message says what failed, where, and what to do next. `exit_code` is what the command line ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ShoalError(Exception):
    """Anything that shoal refuses or cannot do, with a sentence for the user."""

    exit_code = 1


class ConfigError(ShoalError):
    """The user's words do not make sense; `problems` holds one sentence each."""

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class EnvError(ShoalError):
    """An environment cannot be made, or failed too often; `incidents` are failures that nobody has been told of."""

    incidents: Sequence[Any] = ()


class CheckpointError(ShoalError):
    """A checkpoint cannot be written, read or trusted."""


class CallbackError(ShoalError):
    """A hook of the user's, or their `env_task_fn`, failed."""


class WorkerError(ShoalError):
    """A worker process is lost or cannot be started."""


class ClusterError(ShoalError):
    """A host, a launcher or Ray itself does not do its part."""
