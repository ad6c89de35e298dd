"""Output that outlives whoever reads it: a full disk or a closed pipe ends the view, not the run."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger("shoal.runs")


class GuardedStream(io.FileIO):
    """A descriptor to write to; once it fails, `loss` is the error, and all that follows is thrown away."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.stream_name = name
        self.loss: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or seem to."""
        if self.loss is None:
            try:
                return super().write(data)
            except OSError as error:
                self.loss = error
        return memoryview(data).nbytes


def guard_streams() -> list[GuardedStream]:
    """Put a guarded stream in the place of each standard stream that is a real one."""
    found = []
    for name, original in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        if original is None or getattr(sys, name) is not original:  # closed, or a program's own
            continue
        stream = GuardedStream(original.fileno(), name)
        with suppress(OSError):
            original.flush()
        setattr(sys, name, _text(stream, original))
        found.append(stream)
    return found


def _text(stream: GuardedStream, like: TextIO) -> io.TextIOWrapper:
    settings: dict[str, Any] = {"encoding": like.encoding, "errors": like.errors}
    for name in ("line_buffering", "write_through"):
        settings[name] = getattr(like, name)
    return io.TextIOWrapper(io.BufferedWriter(stream), **settings)


def report_lost_streams(streams: Iterable[GuardedStream]) -> list[GuardedStream]:
    """Say which streams are lost; those that are not are returned, to be looked at again."""
    for stream in streams:
        if stream.loss is not None:
            why = stream.loss.strerror or stream.loss
            logger.warning(
                "%s cannot be written (%s): nothing more is printed there, but training continues, and its folder "
                "has all results.",
                stream.stream_name,
                why,
            )
    return [stream for stream in streams if stream.loss is None]
