"""Many environments: what making all of them takes is told, or refused, when the first ones are there."""

from __future__ import annotations

import logging
from time import perf_counter

from shoal.errors import ConfigError
from shoal.machine.memory import available_memory

WARM_UP = 8  # environments, in which modules are imported and caches filled
LEAST_GROWTH = 64 << 20  # bytes that environments must have taken before they say what one of them takes
FEW = 64  # environments that are not worth a word
FIRST_TOLD_S = 3.0  # and again whenever twice the time has passed, so that a log keeps few lines

progress = logging.getLogger("shoal.progress")


class EnvCreationMonitor:
    """Reports how far a worker is with making `count` environments, and refuses those that memory has no room for."""

    def __init__(self, count: int) -> None:
        self._count, self._made = count, 0
        self._began = perf_counter()
        self._told_again_s = FIRST_TOLD_S
        self._warm_bytes = 0
        self._bytes_each = 0.0

    def env_made(self) -> None:
        """Count one environment; ConfigError if all of them will not fit into memory."""
        self._made += 1
        if self._made >= self._count or self._count < FEW:
            return
        if self._made == WARM_UP:
            self._warm_bytes = _own_bytes()
        elif self._made > WARM_UP and self._made & (self._made - 1) == 0:
            self._measure(_own_bytes() - self._warm_bytes)
        elapsed_s = perf_counter() - self._began
        if elapsed_s >= self._told_again_s:
            self._told_again_s = 2 * elapsed_s
            self._tell(elapsed_s)

    def _measure(self, growth: int) -> None:
        if growth < LEAST_GROWTH:
            return
        self._bytes_each = growth / (self._made - WARM_UP)
        needed, free = self._bytes_each * (self._count - self._made), available_memory()
        if needed > free:
            fit = _rounded((self._made + free / self._bytes_each) / 2)
            raise ConfigError(
                f"config.num_envs_per_worker: {self._count:,} environments take about "
                f"{self._count * self._bytes_each / 1e9:.0f} GB of memory ({self._made:,} of them take "
                f"{growth / 1e9:.1f}), and {free / 1e9:.0f} GB are free; use num_envs_per_worker: {fit}"
            )

    def _tell(self, elapsed_s: float) -> None:
        whole_s = elapsed_s / self._made * self._count
        memory = f" and {self._count * self._bytes_each / 1e9:.1f} GB" if self._bytes_each else ""
        progress.info(
            "making %s environments, which takes about %.0f s%s in all; %s are made",
            f"{self._count:,}",
            whole_s,
            memory,
            f"{self._made:,}",
        )


def _rounded(number: float) -> int:
    """The number with its first digit alone."""
    unit = int("1" + "0" * (len(str(int(number))) - 1))
    return int(number) // unit * unit


def _own_bytes() -> int:
    """The memory that this process has."""
    import psutil

    return int(psutil.Process().memory_info().rss)
