"""How an environment's process has ended, in words."""

from __future__ import annotations

import signal
from contextlib import suppress
from time import monotonic

from shoal.envs.env_limits import Limits
from shoal.envs.env_process import OUT_OF_MEMORY
from shoal.envs.env_processes import Death, EnvProcesses
from shoal.envs.process_messages import readable

LAST_GRACE_S = 3.0


def awaited_death(processes: EnvProcesses, id: int) -> Death | None:
    """How a process has ended, if it does within some seconds."""
    until = monotonic() + LAST_GRACE_S
    while (left := until - monotonic()) > 0:
        death = processes.death(id)
        if death is not None or processes.is_broken:
            return death
        readable([processes.control.fileno()], left)
    return None


def cause_of(death: Death | None, late: str, limits: Limits, error: str) -> tuple[str, str]:
    """What kind of failure it was, and in one line why."""
    if error:
        return "error", error.splitlines()[0]
    if late:
        return "hang", f"TimeoutError: {late}"
    if death is None:
        return "exit", "ProcessError: its process was gone before it got its command"
    if death.memory is not None and limits.memory is not None:
        taken, limit = death.memory / 1e6, limits.memory / 1e6
        return "memory", f"MemoryError: it took {taken:.0f} MB, and env_memory_limit_mb is {limit:.0f}"
    if death.disk is not None and limits.disk is not None:
        taken, limit = death.disk / 1e6, limits.disk / 1e6
        return "disk", f"OSError: it wrote {taken:.0f} MB to its scratch_dir, and env_scratch_limit_mb is {limit:.0f}"
    if death.status == OUT_OF_MEMORY:
        return "memory", f"MemoryError: {last_line(death.output)}"
    if death.status < 0:
        with suppress(ValueError):
            return "signal", f"ProcessError: its process was killed by {signal.Signals(-death.status).name}"
        return "signal", f"ProcessError: its process was killed by signal {-death.status}"
    return "exit", f"ProcessError: its process ended by itself with exit code {death.status}"


def last_line(text: str) -> str:
    """The last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
