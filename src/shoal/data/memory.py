"""How much memory this process may still take, by the machine and by its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 where there is no limit


def available_memory() -> int:
    """Bytes that can still be taken: the machine's, or those that a batch system or container leaves."""
    import psutil

    return max(0, min(int(psutil.virtual_memory().available), *_left_in_groups(Path("/proc/self/cgroup"))))


def _left_in_groups(listing: Path) -> Iterator[int]:
    """What each control group above this process leaves; at least one number."""
    yield UNLIMITED
    with suppress(OSError):
        for line in listing.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                root = Path("/sys/fs/cgroup/memory")
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):
                    yield _left(folder, *names)
                if folder == root:
                    break


def _left(folder: Path, limit: str, usage: str, cache: str) -> int:
    """Limit less usage; what the kernel would drop from its file cache counts as free."""
    most = int((folder / limit).read_text())  # "max" is a ValueError: no limit
    if most >= UNLIMITED:
        return UNLIMITED
    stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    return most - int((folder / usage).read_text()) + int(stat.get(cache, 0))
