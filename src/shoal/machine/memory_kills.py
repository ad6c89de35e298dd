"""What the kernel tells of processes that it killed because memory ran out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.machine.control_groups import MOUNT, control_groups, text_in
from shoal.machine.memory import bytes_text, memory_limits, taken_memory

COUNTS = ("memory.events", "memory.oom_control")  # of control groups of version 2 and 1
WHOLE_MACHINE = Path("/proc/vmstat")
MESSAGES = Path("/dev/kmsg")
MOST_MESSAGES = 100_000
NEARLY = 0.9  # of its limit, from which on a control group is called nearly full


@dataclass(frozen=True)
class MemoryMarks:
    """Memory at one moment: how many processes the kernel had killed for it, and how full the fullest group was."""

    kills: Mapping[str, int] = field(default_factory=dict)  # by the file that counts them
    used: int = 0
    limit: int = 0

    @classmethod
    def from_json(cls, tree: Any) -> MemoryMarks:
        """What was written down; ValueError where it is something else."""
        try:
            kills = {str(name): int(count) for name, count in dict(tree["kills"]).items()}
            return cls(kills, int(tree["used"]), int(tree["limit"]))
        except (KeyError, TypeError) as error:
            raise ValueError("these are no marks of memory") from error


def memory_marks() -> MemoryMarks:
    """How it is now, for this process."""
    files = [folder / name for folder in control_groups("memory") for name in COUNTS]
    kills = {str(file): count for file in [*files, WHOLE_MACHINE] if (count := _kills(file)) is not None}
    found = [(taken_memory(folder, names), limit) for folder, names, limit in memory_limits()]
    used, limit = max(found, key=lambda each: each[0] / max(each[1], 1), default=(0, 0))
    return MemoryMarks(kills, used, limit)


def killed_for_memory(pid: int, before: MemoryMarks, is_this_boot: bool = True) -> str | None:
    """Why memory is what a process died of that was last seen with these marks; None: nothing says so.

    The kernel's messages name it, where this user may read them; its counters say that it killed somebody in the same
    group, or on the same machine. After another start of the machine, only how full it was can tell.
    """
    if is_this_boot and is_named(pid, MESSAGES):
        return "the kernel killed it because memory ran out"
    if is_this_boot:
        for file, count in before.kills.items():
            more = (_kills(Path(file)) or 0) - count if _is_counter(file) else 0
            if more > 0:
                where = "of this machine" if file == str(WHOLE_MACHINE) else "of its control group"
                told = f"{more} process{'es' * (more != 1)} {where}"
                return f"memory is the likely cause: the kernel has killed {told} for memory since it was last seen"
    if before.limit and before.used >= NEARLY * before.limit:
        full = f"{bytes_text(before.used)} of {bytes_text(before.limit)} were taken when it was last seen"
        return f"memory is the likely cause: {full}"
    return None


def is_named(pid: int, messages: Path) -> bool:
    """Whether a message of the kernel says that it killed this process for memory."""
    wanted = f"Killed process {pid} (".encode()
    with suppress(OSError):
        descriptor = os.open(messages, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for _ in range(MOST_MESSAGES):
                message = os.read(descriptor, 8192)  # one at a time; at the end there is an error
                if not message or wanted in message:
                    return bool(message)
        finally:
            os.close(descriptor)
    return False


def _is_counter(file: str) -> bool:
    """Whether a name that was written down, by whomever, is that of a file of the kernel's."""
    place = Path(file)
    is_in_group = place.is_relative_to(MOUNT) and ".." not in place.parts and place.name in COUNTS
    return is_in_group or place == WHOLE_MACHINE


def _kills(file: Path) -> int | None:
    """The number in the line `oom_kill` of a file of the kernel's."""
    for line in text_in(file).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdecimal():
            return int(count)
    return None
