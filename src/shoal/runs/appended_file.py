"""A file that only grows, also where the disk is full for a while."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from shoal.runs.atomic_files import open_own


class AppendedFile:
    """A file that only grows by whole pieces: what does not fit is taken back and kept for the next time."""

    def __init__(self, path: Path) -> None:
        self._descriptor = open_own(path, os.O_WRONLY)
        self._end = os.lseek(self._descriptor, 0, os.SEEK_END)
        self._waiting = b""

    def append(self, piece: bytes) -> None:
        """Write what waits, and then this."""
        self._waiting += piece
        written = 0
        try:
            while written < len(self._waiting):
                written += os.pwrite(self._descriptor, self._waiting[written:], self._end + written)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += written
        self._waiting = b""

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        try:
            os.close(self._descriptor)
        except OSError as error:
            if error.errno != errno.EBADF:  # somebody else has closed it, which each row since then has told
                raise
