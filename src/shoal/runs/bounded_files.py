"""Files that anybody may have written: read up to a limit, never through a link, and parsed into bounded memory."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from shoal.errors import CheckpointError
from shoal.machine.memory import available_memory, bytes_text

MOST_VALUES = 1 << 23
"""Numbers, texts, lists and mappings that a JSON file may hold: some hundred MB of memory, and seconds of parsing."""


MOST_SMALL_BYTES = 1 << 26
"""Of what says how a run has ended, what it was, what a trial tries."""


MOST_RESULTS_BYTES = 1 << 34
"""Of all results of a run, a few kilobytes for each iteration."""
MOST_LINE_BYTES = 1 << 24
"""Of one of them."""


def bounded_bytes(path: Path, limit: int, expected: int | None = None) -> bytes:
    """The bytes of a regular file of at most `limit` bytes, and of `expected` if that is known; else CheckpointError.

    The sentence has no place in it but the file's name: who reads knows what it belongs to.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path.name} is not a regular file")
            if status.st_size > limit:
                raise CheckpointError(f"{path.name} has more than {limit} bytes")
            if expected is not None and status.st_size != expected:
                raise CheckpointError(f"{path.name} is not what was saved (its size differs)")
            if status.st_size > 1 << 20 and status.st_size > (free := available_memory()):
                raise CheckpointError(
                    f"{path.name} has {bytes_text(status.st_size)}, and only {bytes_text(free)} of memory are free"
                )
            # A file that grows meanwhile is cut off, and then not what was saved.
            return file.read(status.st_size)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.name} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.strerror})") from error


def proof_of(content: bytes) -> dict[str, Any]:
    """What a manifest says of a file: its size and SHA-256."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def open_regular(path: Path, limit: int | None = None) -> BinaryIO:
    """A regular file, open for reading, of at most `limit` bytes; else an OSError.

    No link, and no pipe or device, which might wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    is_too_large = limit is not None and status.st_size > limit
    if is_too_large or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        if is_too_large:
            raise OSError(errno.EFBIG, f"it has {bytes_text(status.st_size)}", str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; one that is too long to be ours is empty."""
    while line := file.readline(MOST_LINE_BYTES):
        if len(line) < MOST_LINE_BYTES or line.endswith(b"\n"):
            yield line
        else:
            while (rest := file.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield b""


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A regular file that a command needs: FileNotFoundError if it is missing, a sentence if it cannot be read."""
    try:
        file = open_regular(path, MOST_RESULTS_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise CheckpointError(f"{path} {why}; put the file there that shoal has written") from None
    with file:
        yield file


def small_bytes(path: Path) -> bytes:
    """The bytes of a regular file that shoal keeps small; else an OSError."""
    with open_regular(path) as file:
        content = file.read(MOST_SMALL_BYTES + 1)
    if len(content) > MOST_SMALL_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def small_json(path: Path) -> Any:
    """What such a file says in JSON; else an OSError or a ValueError."""
    try:
        return json.loads(small_bytes(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def bounded_json(content: bytes, name: str) -> Any:
    """What JSON text says, if it says a bounded number of finite values; else CheckpointError."""
    check_count(content, name)
    was_collecting = gc.isenabled()
    gc.disable()  # which would look through all that is there again and again
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(f"{name} cannot be parsed ({why})") from error
    finally:
        if was_collecting:
            gc.enable()


def check_count(content: bytes, name: str) -> None:
    """Refuse JSON text with more values than may be read."""
    count = sum(map(content.count, (b",", b"[", b"{")))
    if count > MOST_VALUES:
        raise CheckpointError(f"{name} has more than {MOST_VALUES} values")


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
