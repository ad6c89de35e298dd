"""Folders of the environments' own, on the disk of their host, removed when their worker ends.

All of one process lie in one folder that it locks. What a killed process leaves behind has no lock, and is removed by
the next one that makes such a folder on the same disk. The folder of an environment that failed is moved to where it
outlives the run, beside those of the last failures of this user on this host.
"""

from __future__ import annotations

import atexit
import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from shutil import rmtree

from shoal.errors import ConfigError
from shoal.machine.private_folder import PrivateFolder, sweep

MOST_KEPT = 20  # folders of failed environments; the oldest go first
SHARED_MEMORY = "/dev/shm"


def scratch_folder(env_index: int, root: str | None = None, place: str | None = None) -> str:
    """A new, empty folder for one environment, in `root` or in that of this process at a place."""
    return tempfile.mkdtemp(prefix=folder_prefix(env_index), dir=root or scratch_root(place))


def folder_prefix(env_index: int) -> str:
    """What the names of an environment's folders begin with."""
    return f"env{env_index}-"


@cache
def scratch_root(place: str | None = None) -> str:
    """The folder of this process, made when it is first asked for, below TMPDIR or at another place."""
    place = place or _local_disk()
    if not os.path.isdir(place):
        named = "TMPDIR: " if place == os.environ.get("TMPDIR") else ""
        raise ConfigError(f"{named}there is no folder {place}; make it, or set TMPDIR to one that is there")
    sweep(Path(place))
    folder = PrivateFolder(os.environ, place=place)
    owner = os.getpid()
    atexit.register(lambda: folder.remove() if os.getpid() == owner else None)
    return str(folder.path)


def keep_failed(folder: str) -> str:
    """Move the folder of a failed environment to where it is kept: its new path; empty if there is nothing to keep."""
    try:
        place = Path(_local_disk(), f"shoal-failed-{os.getuid()}")
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if not os.listdir(folder) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            rmtree(folder, ignore_errors=True)
            return ""
        kept = place / Path(folder).name
        os.rename(folder, kept)
        os.utime(kept)
        _forget_oldest(place)
        return str(kept)
    except OSError:  # a full or foreign disk must not end a run that survives the failure itself
        return ""


def size_of(folders: Path, name: str, enough: int) -> int:
    """Bytes on the disk of what lies in the folders of this name; it need not count further than `enough`."""
    total = 0
    for root in folders.glob(name):
        for path, _, files in os.walk(root):
            for file in files:
                with suppress(OSError):
                    total += os.lstat(os.path.join(path, file)).st_blocks * 512
            if total > enough:
                return total
    return total


def _local_disk() -> str:
    return os.environ.get("TMPDIR") or tempfile.gettempdir()


def _forget_oldest(place: Path) -> None:
    """Remove all but the newest folders."""
    ages = []
    for folder in place.iterdir():
        with suppress(OSError):
            ages.append((folder.lstat().st_mtime, folder))
    for _, folder in sorted(ages)[:-MOST_KEPT]:
        rmtree(folder, ignore_errors=True)
