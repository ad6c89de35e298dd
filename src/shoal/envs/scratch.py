"""Folders of the environments' own, on the disk of their host, removed when their worker ends.

All of one process lie in one folder that it locks. What a killed process leaves behind has no lock, and is removed by
the next one that makes such a folder on the same disk.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path

from shoal.machine.private_folder import PrivateFolder, sweep


def scratch_folder(env_index: int, root: str | None = None) -> str:
    """A new, empty folder for one environment, in `root` or in that of this process."""
    return tempfile.mkdtemp(prefix=f"env{env_index}-", dir=root or scratch_root())


@cache
def scratch_root() -> str:
    """The folder of this process, made when it is first asked for."""
    place = os.environ.get("TMPDIR") or tempfile.gettempdir()
    sweep(Path(place))
    folder = PrivateFolder(os.environ, place=place)
    owner = os.getpid()
    atexit.register(lambda: folder.remove() if os.getpid() == owner else None)
    return str(folder.path)
