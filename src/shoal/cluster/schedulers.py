"""The table of schedulers: those of shoal, and those that installed packages add."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from shoal.cluster.cobalt import COBALT
from shoal.cluster.grid_engine import GRID_ENGINE
from shoal.cluster.lsf import LSF
from shoal.cluster.pbs import PBS
from shoal.cluster.scheduler import Environ, Scheduler, Start
from shoal.cluster.scheduler_programs import run
from shoal.cluster.slurm import SLURM
from shoal.cluster.start_commands import SSH
from shoal.errors import ClusterError, ConfigError

GROUP = "shoal.schedulers"
"""The entry points by which a package adds a scheduler: its name, and where its `Scheduler` is."""

# Slurm and LSF sites often have a qsub too, which translates; so they stand first.
BUILT_IN: Mapping[str, Scheduler] = {each.name: each for each in (SLURM, LSF, COBALT, PBS, GRID_ENGINE)}

logger = logging.getLogger("shoal.cluster")


def names() -> list[str]:
    """Every name that --scheduler takes for a scheduler; no package is loaded for it."""
    return [*BUILT_IN, *_added()]


def scheduler_called(name: str) -> Scheduler:
    """The scheduler of this name; ConfigError where there is none."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    point = _added().get(name)
    if point is None:
        raise ConfigError(f"there is no scheduler {name!r}; use --scheduler with one of {', '.join(names())}")
    return _loaded(point)


def all_schedulers() -> list[Scheduler]:
    """Every scheduler, those of installed packages last; one that cannot be loaded is left out, with a warning."""
    found = [*BUILT_IN.values()]
    for point in _added().values():
        try:
            found.append(_loaded(point))
        except ClusterError as error:
            logger.warning("%s", error)
    return found


def starts_of(name: str) -> Sequence[Start]:
    """How processes are started: by a scheduler's own means, or by ssh where the user names hosts."""
    return (SSH,) if name == "ssh" else scheduler_called(name).starts


def find_scheduler(environ: Environ) -> Scheduler:
    """The scheduler of this machine, by the commands on PATH."""
    by_program: dict[str, list[Scheduler]] = {}
    for each in all_schedulers():
        by_program.setdefault(each.commands.submit[0], []).append(each)
    for program, rivals in by_program.items():
        if shutil.which(program, path=environ.get("PATH", "")) is not None:
            return rivals[0] if len(rivals) == 1 else _whose(rivals, environ)
    neither = " nor ".join(
        f"{program} ({', '.join(each.title for each in rivals)})" for program, rivals in by_program.items()
    )
    raise ClusterError(
        f"there is no scheduler here: neither {neither} is on PATH, "
        "so load its module, or name the scheduler with --scheduler and --dry-run"
    )


def _whose(rivals: Sequence[Scheduler], environ: Environ) -> Scheduler:
    """Which of several schedulers with the same command for submitting this machine has."""
    told_apart = sorted(rivals, key=lambda each: not each.help_says)  # who is not known by its help is the last guess
    for each in told_apart:
        if any(name.startswith(each.marks) for name in environ if each.marks):
            return each
    if told_apart[0].help_says:
        done = run(["qstat", "-help"])
        said = done.stdout + done.stderr
        for each in told_apart:
            if re.search(each.help_says, said):
                return each
    return told_apart[-1]


def _added() -> dict[str, EntryPoint]:
    return _added_on(tuple(sys.path))


@cache  # looking through all packages takes a while where the file system is slow
def _added_on(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The schedulers of installed packages, not loaded; a name of ours stays ours."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in BUILT_IN}


def _loaded(point: EntryPoint) -> Scheduler:
    try:
        found = point.load()
    except Exception as error:  # whatever a package of somebody else raises
        raise ClusterError(f"the scheduler {point.name} of {point.value} cannot be loaded: {error}") from error
    if not isinstance(found, Scheduler) or found.name != point.name:
        raise ClusterError(f"{point.value} is not a Scheduler called {point.name}; fix the entry point of its package")
    return found
