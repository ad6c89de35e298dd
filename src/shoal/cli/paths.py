"""Paths as people read and type them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.machine.terminal import printable

_started_in: list[Path] = []


@contextmanager
def started_here() -> Iterator[None]:
    """Meanwhile, paths are told from this folder, wherever an environment changes to: it is where the user types."""
    try:
        _started_in.append(Path.cwd())
    except FileNotFoundError:  # somebody has removed it
        yield
        return
    try:
        yield
    finally:
        _started_in.pop()


def _working_folder() -> Path:
    return _started_in[-1] if _started_in else Path.cwd()


def short_path(path: Path) -> str:
    """A path from the user's working folder if it is below, with `~` if it is below the home folder, else in full.

    It is on one line, whatever the names of folders have in them.
    """
    return printable(_shortened(path))


def _shortened(path: Path) -> str:
    for folder, prefix in ((_working_folder(), ""), (Path.home(), f"~{os.sep}")):
        if folder != Path(folder.anchor) and path.is_relative_to(folder):
            return prefix + str(path.relative_to(folder))
    return str(path)


def typed_path(path: Path) -> str:
    """A short path as a shell takes it."""
    text = _shortened(path)
    home = f"~{os.sep}"
    quoted = home + shlex.quote(text.removeprefix(home)) if text.startswith(home) else shlex.quote(text)
    return printable(quoted)
