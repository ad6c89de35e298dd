"""The control groups (cgroups) by which a batch system or a container limits this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
LISTING = Path("/proc/self/cgroup")


def control_groups(controller: str, mount: Path = MOUNT, listing: Path = LISTING) -> Iterator[Path]:
    """The folders in which a controller may limit this process, innermost first; version 2 has one tree for all."""
    for line in text_in(listing).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        yield from _upwards(_top(mount, controller, controllers), path)


def text_in(path: Path) -> str:
    """What stands in a file of the kernel's; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """The number in a file of the kernel's; None where it cannot be read, or says `max` or -1: no limit."""
    text = text_in(path)
    return int(text) if text.isdecimal() else None


def _top(mount: Path, controller: str, controllers: str) -> Path:
    """Where a tree is mounted: that of version 2 on top, one of version 1 by the name of its controllers."""
    if not controllers:
        return mount
    # Version 1 may mount two together, as cpu,cpuacct; nearly everywhere each has a link of its own beside them.
    own = mount / controller
    return own if own.is_dir() else mount / controllers


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The folder of a control group, then those around it; each may set a limit."""
    # A container may see only the top of the tree, or a path that leads out of what it sees.
    names = [] if ".." in path.split("/") else [name for name in path.split("/") if name]
    for length in range(len(names), -1, -1):
        folder = top.joinpath(*names[:length])
        if folder.is_dir():
            yield folder
