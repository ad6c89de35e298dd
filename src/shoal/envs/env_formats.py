"""Environment formats that installed packages add: `FORMAT:NAME`, as `pettingzoo:classic/tictactoe_v3` is one of ours.

A package has an entry point of the group `shoal.env_formats`, whose name is the format and whose value is a function
`make(name, config)`: it gets the text after the colon and the environment's `EnvContext`, and returns an environment.
It is imported when somebody names such an environment, and not before.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from shoal.config.algorithms import load
from shoal.envs.context import EnvContext
from shoal.envs.env_arguments import guarded
from shoal.errors import ConfigError

GROUP = "shoal.env_formats"
"""The entry points by which a package adds a format: its name, and where its function is."""

BUILT_IN = ("envpool", "pettingzoo")
"""Formats of shoal's own, which stay its own."""


@dataclass(frozen=True)
class FormatMaker:
    """Makes environments of one name in a format, here or in another process."""

    text: str  # as the user types it
    place: str  # module:function

    def __call__(self, ctx: EnvContext) -> Any:
        """Make one."""
        make = self.function()
        name = self.text.partition(":")[2]
        return guarded(lambda: make(name, ctx), self.text, ctx)

    def function(self) -> Any:
        """The function of the package."""
        try:
            found = load(self.place)
        except Exception as error:  # it is somebody else's code, and may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"env {self.text!r}: its format cannot be imported from {self.place} ({reason}); repair its package"
            ) from error
        if not callable(found):
            raise ConfigError(f"env {self.text!r}: {self.place} must be a function make(name, config)")
        return found


def format_maker(text: str) -> FormatMaker | None:
    """What `FORMAT:NAME` means in a format of an installed package, of which nothing is imported; None if in none."""
    head, colon, name = text.partition(":")
    if not colon or head in BUILT_IN:
        return None
    point = _added(tuple(sys.path)).get(head)
    if point is None:
        return None
    if not name:
        raise ConfigError(f"env {text!r}: which environment of that format? Type {head}:NAME")
    return FormatMaker(text, point.value)


@cache  # looking through all packages takes a while where the file system is slow
def _added(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
