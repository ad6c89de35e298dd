"""Which CPUs of this host are ours.

Ray counts the machine's CPUs, whatever affinity, control groups and the scheduler say; so it must be told.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path

from shoal.machine.control_groups import LISTING, MOUNT, control_groups, text_in


def cores() -> int:
    """The cores that this process may use: the least of its affinity and its control groups, and at least one."""
    return usable_cpus(cpus_of_this_process(), cgroup_cpus(), None)


def cpus_of_this_process() -> frozenset[int]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cgroup_cpus(mount: Path = MOUNT, listing: Path = LISTING) -> float | None:
    """The CPUs that this process's control groups leave it, by time and by number; None where they set no limit."""
    limits: list[float] = []
    for folder in control_groups("cpu", mount, listing):
        limits += _quota(*text_in(folder / "cpu.max").split()[:2])
        limits += _quota(text_in(folder / "cpu.cfs_quota_us"), text_in(folder / "cpu.cfs_period_us"))
    for folder in control_groups("cpuset", mount, listing):
        limits += _cpu_count(text_in(folder / "cpuset.cpus.effective"))
        limits += _cpu_count(text_in(folder / "cpuset.cpus"))
    return min(limits, default=None)


def usable_cpus(affinity: Collection[int], cgroup: float | None, scheduler: int | None) -> int:
    """The least of what everyone allows, and at least one."""
    allowed = [len(affinity)]
    if cgroup is not None:
        allowed.append(math.floor(cgroup))
    if scheduler is not None:
        allowed.append(scheduler)
    return max(1, min(allowed))


def _quota(quota: str = "", period: str = "") -> list[float]:
    """CPUs of `200000 100000`; nothing for `max` and -1."""
    if quota.isdecimal() and period.isdecimal() and int(period):
        return [int(quota) / int(period)]
    return []


def _cpu_count(text: str) -> list[float]:
    """How many CPUs `0-3,8` are."""
    ends = [item.partition("-")[::2] for item in text.split(",") if item]
    return [float(sum(int(last or first) - int(first) + 1 for first, last in ends))] if ends else []
