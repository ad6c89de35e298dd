"""Files that are whole or absent: writing with fsync, replacing by rename."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and return when it is on the disk."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path`, which is the old or the new file at every moment."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        write_file(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; their renames are durable or there is no way to make them so.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that a half-removed one never carries its name."""
    doomed = folder.with_name(f".tmp-{folder.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        os.rename(folder, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)
