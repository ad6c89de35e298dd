"""A secret of this user's own, by which shoal knows again what this user has started.

It is kept outside of every run, so that nobody who hands over a run can have used it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


def key_file() -> Path:
    """Where the secret is: in the user's state folder, which `XDG_STATE_HOME` may name."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if os.path.isabs(state) else Path("~/.local/state").expanduser()
    return root / "shoal" / "own.key"


def own_key(make: bool = False) -> bytes | None:
    """The secret; None if there is none, or none that only this user can have read. With `make`, one is made then."""
    with suppress(OSError, RuntimeError):  # no home, no room, no permission
        path = key_file()
        if make and not os.path.lexists(path):
            _write(path)
        return _read(path)
    return None


def _read(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_private = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        key = file.read(KEY_BYTES + 1) if is_private else b""
    return key if len(key) == KEY_BYTES else None


def _write(path: Path) -> None:
    """Put a new secret in its place, unless another process does so at the same time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(os.urandom(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, it replaces nothing
    finally:
        temporary.unlink(missing_ok=True)
