"""How an environment's process has ended, in words."""

from __future__ import annotations

from shoal.envs.env_limits import Limits
from shoal.envs.env_process import OUT_OF_MEMORY
from shoal.envs.forked_processes import Death


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
    return "signal" if death.status < 0 else "exit", f"ProcessError: its process {death.words}"


def last_line(text: str) -> str:
    """The last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
