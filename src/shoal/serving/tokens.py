"""The token of a server: new for each, or kept in a file that only this user can read."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from shoal.errors import ConfigError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")  # what a Bearer header may hold (RFC 6750)


def new_token() -> str:
    """32 bytes of chance as text."""
    return secrets.token_urlsafe(32)


def token_in(path: Path) -> tuple[str, bool]:
    """The token of a file, and whether it was made now; a ConfigError refuses a file that others can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return _read(path), False
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be written: {error.strerror or error}") from None
    token = new_token()
    with open(descriptor, "w") as file:
        file.write(token + "\n")
    return token, True


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            text = file.read(1024) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be read: {error.strerror or error}") from None
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"--token-file: others can read or write {path}; type: chmod 600 {path}")
    token = text.decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"--token-file: {path} holds no token: one line of 16 to 512 letters, digits or -._~+/=; give a path that "
            "does not exist, and one is made there"
        )
    return token
