"""What every runner of `checkpoints.py` measures alike: seconds, bytes that are new on the disk, and extra memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any


def peak_mb() -> float:
    """The highest memory of this process since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def forget_peak() -> float:
    """Let the highest memory be what is held now, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def inodes(folder: Path) -> dict[int, int]:
    """Every file below a folder once, however many names it has, with its size."""
    found = [file.stat() for file in folder.rglob("*") if file.is_file()]
    return {status.st_ino: status.st_size for status in found}


def measured(folder: Path, begin: Callable[[], None], end: Callable[[], None]) -> dict[str, Any]:
    """One save: `begin` holds up training, and after `end` it is on the disk."""
    before, held = inodes(folder), forget_peak()
    started = perf_counter()
    begin()
    blocked = perf_counter() - started
    end()
    total = perf_counter() - started
    new = sum(size for inode, size in inodes(folder).items() if inode not in before)
    return {"blocked_s": blocked, "total_s": total, "written_mb": new / 1e6, "extra_mb": max(peak_mb() - held, 0.0)}
