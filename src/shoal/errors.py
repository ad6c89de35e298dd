"""Every exception that shoal defines.

ShoalError
├── ConfigError            something the user said is wrong; all problems are listed at once
│   ├── ModuleMissing      no module of that name can be found
│   ├── AttributeMissing   the module is there, but has nothing of that name
│   ├── NotTrusted         a stranger's run names code that nobody has allowed to run
│   └── MissingMetric      no result of a sweep will ever have its metric
├── EnvError               an environment cannot be made, or failed too often
│   ├── EnvStartError      an environment never came to life
│   └── ProgramLost        the program behind an environment hangs or has ended
├── CheckpointError        a checkpoint cannot be written, read or trusted
│   ├── FolderGone         the folder of a run was moved, deleted or emptied
│   └── RowsLost           what a checkpoint was to share with an earlier one is gone
├── CallbackError          a hook of the user's, or their env_task_fn, failed
├── WorkerError            a worker process is lost or cannot be started
└── ClusterError           hosts, launchers, Ray itself
    └── LaunchError        a cluster could not be brought up
        ├── HeadFailed     Ray could not be started on the head
        ├── NodeFailed     another host could not start
        └── TimedOut       a host has not shown up, or was not ready, in time

Four are no errors that a user is told of; each is of the kind that the code it passes through expects:

KeyboardInterrupt
└── Interrupted            a signal cuts a long call short
BaseException
└── Stopped                ends a function whose trial is over
Exception
└── NodeNotUp              a private Ray does not come up, and is tried again
KeyError
└── NoSuchItem             an environment asks its config for an attribute as an item

A message says what failed, where, and what to do next. `exit_code` is what the command line ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
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


class ModuleMissing(ConfigError):
    """No module of that name can be found."""


class AttributeMissing(ConfigError):
    """The module is there, but has nothing of that name."""


class NotTrusted(ConfigError):
    """A stranger's run names code, which nobody has allowed to run."""


class MissingMetric(ConfigError):
    """No result will ever have the metric: the whole sweep is wrong, not the trial."""


class EnvError(ShoalError):
    """An environment cannot be made, or failed too often; `incidents` are failures that nobody has been told of."""

    incidents: Sequence[Any] = ()


class EnvStartError(EnvError):
    """An environment never came to life: the user repairs it and starts again, so it ends as a wrong word does."""

    exit_code = 2


class ProgramLost(EnvError):
    """The program behind an environment hangs or has ended.

    `kind`, `status` and `output` are what an incident says of it: `status` is the exit code of its process, a signal as
    a negative number, and `output` the last that it printed.
    """

    def __init__(self, message: str, kind: str = "error", status: int | None = None, output: str = "") -> None:
        super().__init__(message)
        self.kind, self.status, self.output = kind, status, output


class CheckpointError(ShoalError):
    """A checkpoint cannot be written, read or trusted."""


class FolderGone(CheckpointError):
    """The folder of a run is no longer at its place, or emptied.

    `moved_to` is where it is now, if that can be told; `is_there` says that it is where it was, without its files.
    """

    def __init__(self, message: str, moved_to: Path | None = None, is_there: bool = False) -> None:
        super().__init__(message)
        self.moved_to, self.is_there = moved_to, is_there


class RowsLost(CheckpointError):
    """Files that a new checkpoint was to share with an earlier one are gone or damaged; memory may still have them."""


class CallbackError(ShoalError):
    """A hook of the user's, or their `env_task_fn`, failed."""


class WorkerError(ShoalError):
    """A worker process is lost or cannot be started."""


class ClusterError(ShoalError):
    """A host, a launcher or Ray itself does not do its part."""


class LaunchError(ClusterError):
    """A cluster could not be brought up; the code that `shoal launch` ends with says why."""


class HeadFailed(LaunchError):
    """Ray could not be started on the head."""

    exit_code = 81


class NodeFailed(LaunchError):
    """Another host could not start."""

    exit_code = 82


class TimedOut(LaunchError):
    """A host has not shown up, or was not ready, in time."""

    exit_code = 83


class Interrupted(KeyboardInterrupt):
    """Raised inside a long call that a signal cuts short.

    A KeyboardInterrupt, for that is what other people's code lets through: Ray's waiting calls make an error of all
    else that a handler raises, and forget the class even of this one. `Interrupts.cutting` gives it back.
    """


class Stopped(BaseException):
    """Ends a function whose trial is over; no Exception, so that the function's own handlers let it pass."""


class NodeNotUp(Exception):
    """A private Ray does not come up; no ShoalError, for it is tried again."""


class NoSuchItem(KeyError):
    """One of the attributes of an environment's config was asked for as an item."""
