"""Files that are whole or absent, and never somebody else's: fsync, rename, and no writing through links."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from shoal.errors import CheckpointError, ConfigError


def write_file(path: Path, content: bytes) -> None:
    """Write a new file and return when it is on the disk."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def open_own(path: Path, flags: int) -> int:
    """Open a file for writing where it is, or make it; a symbolic link is refused, and what it leads to untouched.

    Whoever can write the folder could otherwise have any file of the user's written, by a link of the right name.
    """
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link(path) from None
        raise


def own_folder(path: Path) -> Path:
    """A folder that a run writes into, be it there or not; a symbolic link is refused likewise."""
    if path.is_symlink():
        raise _link(path)
    return path


def _link(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is a symbolic link, and a run writes only to files of its own; remove it.")


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


def refuse_foreign(path: Path, kind: str, is_ours: Callable[[BinaryIO], bool], option: str = "") -> None:
    """Refuse to write where there is a file of another kind than ours, which a person may have no other copy of."""
    if not path.is_file() or not path.stat().st_size:
        return
    named = f"{option} {path}".lstrip()
    try:
        with path.open("rb") as file:
            is_replaceable = is_ours(file)
    except OSError as error:
        raise ConfigError(f"{named}: is there already, and cannot be read: {error.strerror or error}") from None
    if not is_replaceable:
        raise ConfigError(f"{named}: is there already, and is no {kind}; give another name, or remove it first")


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
    remove_tree(doomed)


def move_folder(folder: Path, target: Path, left_out: str) -> None:
    """Move a folder to a name that is free; each of the two names has all of it or is not there.

    Onto another file system it is copied, without files called `left_out`, and deleted when the copy is on the disk.
    """
    try:
        os.rename(folder, target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    copy = target.with_name(f".tmp-{target.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        shutil.copytree(folder, copy, True, shutil.ignore_patterns(left_out), _copy_to_disk)
        for place, _, _ in os.walk(copy):
            sync_folder(Path(place))
        os.rename(copy, target)
    except BaseException as error:
        remove_tree(copy)
        if isinstance(error, shutil.Error):  # of several files, with a reason each
            raise OSError(error.args[0][0][2]) from None
        raise
    sync_folder(target.parent)
    remove_folder(folder)


def _copy_to_disk(source: str, target: str) -> None:
    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_tree(place: Path) -> None:
    """Remove a folder with all that is in it, as far as it can be; of a symbolic link only the link."""
    if place.is_symlink():
        place.unlink(missing_ok=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
