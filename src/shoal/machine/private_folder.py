"""A short folder on this host's own disk, for this user and this job alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shoal.errors import ClusterError

PREFIX = "shl-"
MARK = b"A private folder of shoal. It is removed when nobody locks this file.\n"
MOST_BYTES = 43  # of Ray's --temp-dir: the path of a socket in it may have 107
SHARED_TYPES = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "smb",
    "afs",
    "ceph",
    "panfs",
    "pvfs",
    "orangefs",
    "9p",
    "fuse.",
)


class PrivateFolder:
    """Made for one Ray node, locked while anybody uses it, and removed after.

    With `may_be_shared`, it may be on a file system that other hosts have too, where there is no other place. Who needs
    no room for Ray's sockets names the `place` itself.
    """

    def __init__(self, environ: Mapping[str, str], may_be_shared: bool = False, place: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place or _place(environ, may_be_shared)))
        self.ray = self.path / "r"  # a folder of its own, since Ray lets everybody into its --temp-dir (mode 0777)
        # Whoever inherits this descriptor holds the lock too; it ends with the last of them, however they end.
        self.lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with contextlib.suppress(OSError):  # where nobody can lock, nobody sweeps
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.write(self.lock, MARK)  # after the lock: what has the mark and no lock is left behind

    def write(self, name: str, text: str) -> Path:
        """A file that only this user can read."""
        path = self.path / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return path

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def sweep_all(environ: Mapping[str, str]) -> None:
    """Remove what killed jobs of this user have left on this host's own disks, wherever such a folder can be."""
    for place in _candidates(environ):
        if not file_system(Path(place)).startswith(SHARED_TYPES):
            sweep(Path(place))


def sweep(place: Path) -> None:
    """Remove what killed jobs of this user have left: folders with our mark that nobody locks any more."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.pread(lock, len(MARK) + 1, 0) == MARK:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def file_system(path: Path) -> str:
    """The type of the file system that a path is on, as Linux names it; empty where that cannot be told."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        real = os.path.realpath(path)
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            point = before.split()[4].encode().decode("unicode_escape")
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, after.split()[0]
    return kind


def _candidates(environ: Mapping[str, str]) -> list[str]:
    """Where the folder may be, best first."""
    places = [environ.get("RAY_TMPDIR", ""), environ.get("TMPDIR", ""), "/tmp"]
    return [place for place in places if place]


def _place(environ: Mapping[str, str], may_be_shared: bool) -> str:
    """Where the folder can be: short enough, writable, and on this host's own disk."""
    problems, shared = [], []
    for place in _candidates(environ):
        kind = file_system(Path(place))
        if len(os.fsencode(place)) + len(PREFIX) + 11 > MOST_BYTES:
            problems.append(f"{place} is too long for Ray's sockets")
        elif not os.access(place, os.W_OK | os.X_OK):
            problems.append(f"{place} cannot be written")
        elif kind.startswith(SHARED_TYPES):
            problems.append(f"{place} is shared between hosts ({kind})")
            shared.append(place)
        else:
            sweep(Path(place))
            return place
    if shared and may_be_shared:  # not swept: a lock there may be known to one host alone
        return shared[0]
    raise ClusterError(
        f"no place for Ray's files: {'; '.join(problems)}; set RAY_TMPDIR to a short folder on a local disk"
    )
