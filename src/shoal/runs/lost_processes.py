"""A process that trained a run and disappeared without a word: who it was, and whether memory was the cause.

While a run trains, its lease says who it is, and a file beside it how it stood with memory. Both are removed at the
end; so what is found there of a process that is gone is of one that could not say how it ended.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from shoal.errors import ShoalError
from shoal.machine.memory_kills import MemoryMarks, killed_for_memory, memory_marks
from shoal.runs.atomic_files import open_own
from shoal.runs.bounded_files import bounded_bytes
from shoal.runs.lease import LEASE, LeaseOwner, is_on_this_kernel, last_owner
from shoal.runs.outcomes import read_outcome

MARKS_FILE = ".memory.json"
MOST_BYTES = 1 << 16

REMEDY = (
    "use a smaller num_envs_per_worker, train_batch_size or replay buffer, or fewer num_workers, or ask for more "
    "memory (shoal submit --memory-per-node)"
)
SILENT = (
    "nothing says that memory ran out: a kill -9, a power failure or a lost node leaves no word either, nor does a "
    "simulator that ends its process (os._exit, exit() in C), which a run with env_isolation: process survives"
)


def note_memory(folder: Path) -> None:
    """Write down how this process stands with memory, for whoever finds its run without it; again every few seconds."""
    try:
        descriptor = open_own(folder / MARKS_FILE, os.O_WRONLY | os.O_TRUNC)
        with open(descriptor, "w") as file:
            json.dump(asdict(memory_marks()), file)
    except (OSError, ShoalError):
        return  # a disk that is full or away is told of by others


def forget_memory(folder: Path) -> None:
    """The process has ended with a word."""
    with suppress(OSError):
        (folder / MARKS_FILE).unlink(missing_ok=True)


def disappearance(folder: Path, run: str = "this run") -> str | None:
    """Who trained a run before and is gone without a word, why, and what to do; None if nobody is."""
    with suppress(OSError):
        owner = last_owner(folder)
        if owner is None or not owner.pid or read_outcome(folder) is not None:
            return None
        seen = datetime.fromtimestamp((folder / LEASE).stat().st_mtime)
        who = f"The process that trained {run} before ({owner}, last seen {seen:%Y-%m-%d %H:%M:%S})"
        cause = _memory(folder, owner)
        why = SILENT if cause is None else f"{cause}; {REMEDY}"
        return f"{who} disappeared without a word; {why}."
    return None


def _memory(folder: Path, owner: LeaseOwner) -> str | None:
    """Why memory was the cause, if anything says so."""
    try:
        marks = MemoryMarks.from_json(json.loads(bounded_bytes(folder / MARKS_FILE, MOST_BYTES)))
    except (OSError, ValueError, ShoalError, RecursionError):
        marks = MemoryMarks()
    return killed_for_memory(owner.pid, marks, is_on_this_kernel(owner))
