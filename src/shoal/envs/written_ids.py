"""The ids that installed packages would register, found by reading their source: nothing is imported for it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shoal.envs.packages import registering_packages

_REGISTERED = re.compile(r"register\w*\(\s*(?:id\s*=\s*)?([\"'])(?P<id>[\w./:-]+)\1")


@dataclass(frozen=True)
class Home:
    """Where an id is registered: a package, and the module in it that has the call."""

    package: str
    module: str


def homes_of(env_id: str) -> tuple[Home, ...]:
    """Who would register an id: who has it in the source, else the package that has the name of its namespace."""
    written = written_ids().get(env_id, ())
    if written or "/" not in env_id:
        return written
    namespace = _plain(env_id.partition("/")[0])
    return tuple(Home(package, package) for package in packages() if _plain(package) == namespace)


@cache
def written_ids() -> dict[str, tuple[Home, ...]]:
    """The ids that stand in the source of registering packages as they are, and who registers each."""
    found: dict[str, list[Home]] = {}
    for package in packages():
        for module, file in _modules_of(package):
            for match in _REGISTERED.finditer(file.read_text(errors="replace")):
                homes = found.setdefault(match["id"], [])
                if package not in [home.package for home in homes]:
                    homes.append(Home(package, module))
    return {env_id: tuple(homes) for env_id, homes in found.items()}


@cache
def packages() -> tuple[str, ...]:
    """The installed packages that register environments."""
    return tuple(sorted({module.partition(".")[0] for module in registering_packages()}))


def _modules_of(package: str) -> Iterator[tuple[str, Path]]:
    """Each module of a package by its dotted name, with its file."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        root = Path(folder)
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            if file.is_file():
                yield ".".join((package, *inner)), file


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
