"""The run's `log.txt`, where a message that repeats cannot fill the disk."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path

from shoal.machine.redaction import redacted
from shoal.runs.atomic_files import open_own

BURST = 20
PERIOD_S = 60.0


_spoken_of: ContextVar[Path | None] = ContextVar("spoken_of", default=None)


@contextmanager
def speaking_of(folder: Path | None) -> Iterator[None]:
    """Let what is said meanwhile stand in the log of this run alone, of several in a process; None: in all of them."""
    token = _spoken_of.set(folder)
    try:
        yield
    finally:
        _spoken_of.reset(token)


class OwnOnly(logging.Filter):
    """Let pass what is said of one run, and of all."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002
        """Whether the record is written."""
        return _spoken_of.get() in (None, self._folder)


class RateLimit(logging.Filter):
    """Let each message pass `burst` times per period, then count; the count is told when the next one passes.

    Messages are the same if their text before formatting, their level and their logger are.
    """

    def __init__(self, burst: int = BURST, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self._burst = burst
        self._period_s = period_s
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        key = (record.name, record.levelno, str(record.msg))
        now = time.monotonic()
        began, count = self._seen.get(key, (now, 0))
        if now - began >= self._period_s:
            if count > self._burst:
                record.msg = f"{record.msg} [and {count - self._burst} more like it before]"
            began, count = now, 0
        self._seen[key] = (began, count + 1)
        if count + 1 == self._burst:
            record.msg = f"{record.msg} [repeats; not shown again for {self._period_s:.0f} s]"
        return count < self._burst


class Redacting(logging.Formatter):
    """Writes no secret of the environment, whoever has said it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or the lines of a traceback."""
        return redacted(super().format(record))


class LogFile(logging.FileHandler):
    """A log that is opened when there is something to write, never through a link, and that may be lost."""

    def _open(self) -> TextIOWrapper:
        return open(open_own(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")

    def close(self) -> None:
        """Close the file; what a full disk did not take is lost, and was told by the reporters."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Stay quiet: a full disk is told by the reporters, and logging's own traceback would be the flood."""


@contextmanager
def log_to(path: Path, level: str) -> Iterator[None]:
    """Write shoal's messages to `path` meanwhile; those of `level` and above also to stderr if nobody else listens."""
    log = logging.getLogger("shoal")
    with suppress(OSError):  # of a full disk; it may have room later, for `handler` opens the file again
        os.close(open_own(path, os.O_WRONLY))
    handler = LogFile(path, delay=True)
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(OwnOnly(path.parent))
    handler.addFilter(RateLimit())
    handlers: list[logging.Handler] = [handler]
    if not log.hasHandlers():
        console = logging.StreamHandler(sys.stderr)
        console.setLevel(level)
        console.setFormatter(Redacting())
        console.addFilter(RateLimit())
        handlers.append(console)
    before = log.level
    # The file tells the run's story whatever the user wants to see.
    log.setLevel(min(logging.INFO, logging.getLevelName(level)))
    for each in handlers:
        log.addHandler(each)
    try:
        yield
    finally:
        for each in handlers:
            log.removeHandler(each)
            each.close()
        log.setLevel(before)
