"""Which CPUs and GPUs of this host are ours.

Ray counts the machine's CPUs, whatever affinity, cgroups and the scheduler say; so it must be told.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path


def cpus_of_this_process() -> frozenset[int]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cgroup_cpus(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self/cgroup")) -> float | None:
    """The CPUs that this process's control groups leave it, by time and by number; None where they set no limit."""
    limits: list[float] = []
    for line in _text(proc).splitlines():
        # hierarchy:controllers:path; version 2 names no controllers, version 1 has a folder for each set of them
        _, controllers, path = line.split(":", 2)
        for folder in _upwards(root / controllers, path):
            limits += _quota(*_text(folder / "cpu.max").split()[:2])
            limits += _quota(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
            limits += _cpu_count(_text(folder / "cpuset.cpus.effective"))
            limits += _cpu_count(_text(folder / "cpuset.cpus"))
    return min(limits, default=None)


def usable_cpus(affinity: Collection[int], cgroup: float | None, scheduler: int | None) -> int:
    """The least of what everyone allows, and at least one."""
    allowed = [len(affinity)]
    if cgroup is not None:
        allowed.append(math.floor(cgroup))
    if scheduler is not None:
        allowed.append(scheduler)
    return max(1, min(allowed))


def gpus_of_this_host(environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """The GPUs that this process may use, as its variables name them, or as the drivers do where none is set."""
    # ROCR counts before HIP: where both are set, HIP's numbers are those of what ROCR has left.
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        if variable in environ:
            names = (name.strip() for name in environ[variable].split(","))
            # As for CUDA itself, the first name that is none ends the list.
            return list(itertools.takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))
    return _nvidia_gpus(root) or _amd_gpus(root)


def _nvidia_gpus(root: Path) -> list[str]:
    # Not /proc/driver/nvidia: it has all GPUs of the machine, also in a container that was given none.
    devices = (device for device in (root / "dev").glob("nvidia[0-9]*") if _opens(device))
    return sorted((device.name.removeprefix("nvidia") for device in devices), key=int)


def _amd_gpus(root: Path) -> list[str]:
    if not (root / "dev/kfd").exists():
        return []
    # A CPU is a node too, with the id 0; a GPU that was given to another job has an id that cannot be read.
    ids = [_text(node / "gpu_id") for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*")]
    return [str(index) for index, _ in enumerate(gpu for gpu in ids if gpu not in ("", "0"))]


def _opens(device: Path) -> bool:
    # A control group of devices refuses to open what was given to another job, whatever the file's mode says.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The folder of a control group, then those around it; each may set a limit."""
    # A container may see only the top of the tree, or a path that leads out of what it sees.
    names = [] if ".." in path.split("/") else [name for name in path.split("/") if name]
    for length in range(len(names), -1, -1):
        yield mount.joinpath(*names[:length])


def _quota(quota: str = "", period: str = "") -> list[float]:
    """CPUs of `200000 100000`; nothing for `max` and -1."""
    if quota.isdecimal() and period.isdecimal() and int(period):
        return [int(quota) / int(period)]
    return []


def _cpu_count(text: str) -> list[float]:
    """How many CPUs `0-3,8` are."""
    ends = [item.partition("-")[::2] for item in text.split(",") if item]
    return [float(sum(int(last or first) - int(first) + 1 for first, last in ends))] if ends else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
