"""How much memory this process has and may still take, by the machine and by its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoal.machine.control_groups import LISTING, MOUNT, control_groups, number_in, text_in

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class Files(NamedTuple):
    """What a version of control groups calls its numbers of memory."""

    limit: str
    usage: str
    cache: str  # in memory.stat: what the kernel would drop from its file cache


VERSIONS = (
    Files("memory.max", "memory.current", "inactive_file"),
    Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def total_memory() -> int:
    """Bytes in all: the machine's, or those that a batch system or container grants."""
    import psutil

    limits = [limit for _, _, limit in memory_limits()]
    return min([int(psutil.virtual_memory().total), *limits])


def available_memory() -> int:
    """Bytes that can still be taken: the machine's, or those that a batch system or container leaves."""
    import psutil

    left = [limit - taken_memory(folder, files) for folder, files, limit in memory_limits()]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def memory_limits(mount: Path = MOUNT, listing: Path = LISTING) -> Iterator[tuple[Path, Files, int]]:
    """Each control group above this process that limits memory, the names of its files, and its limit."""
    for folder in control_groups("memory", mount, listing):
        for files in VERSIONS:
            limit = number_in(folder / files.limit)
            if limit is not None:
                yield folder, files, limit


def taken_memory(folder: Path, files: Files) -> int:
    """What a control group has taken; what the kernel would drop from its file cache counts as free."""
    stat = dict(line.split(" ", 1) for line in text_in(folder / "memory.stat").splitlines())
    return (number_in(folder / files.usage) or 0) - int(stat.get(files.cache, 0))


def bytes_text(count: float) -> str:
    """A number of bytes for people: `48 kB`, `1.8 MB`, `512 MB`, `8.0 GB`, `1,049 GB`."""
    if count >= 1e9:
        return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"
    if count >= 1e6:
        return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e4 else f"{count / 1e3:.1f} kB"


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees, for the next arrays of the same size.

    The layers of a minibatch of images take a hundred megabytes. Glibc would give them back to the system after each
    and ask for them again, page by page. Arrays of more than 64 MB, as replay of vectors has, are given back as before.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 64 << 20)
        mallopt(M_TRIM_THRESHOLD, 512 << 20)
