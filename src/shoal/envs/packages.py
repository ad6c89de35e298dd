"""Installed packages whose import registers environments with Gymnasium."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

KNOWN_PACKAGES = (
    "ale_py",
    "buffalo_gym",
    "crafter",
    "flappy_bird_gymnasium",
    "gym_aloha",
    "gym_anytrading",
    "gym_pusht",
    "gym_xarm",
    "gymnasium_robotics",
    "highway_env",
    "metadrive",
    "metaworld",
    "minigrid",
    "miniworld",
    "mo_gymnasium",
    "nasim",
    "panda_gym",
    "procgen",
    "pybullet_envs_gymnasium",
    "PyFlyt.gym_envs",
    "safety_gymnasium",
    "sumo_rl",
    "tetris_gymnasium.envs",
    "vizdoom.gymnasium_wrapper",
)
"""Modules that are known to register environments when they are imported."""

ENTRY_POINTS = "gymnasium.envs"
"""The group under which packages announce what they register; Gymnasium itself no longer reads it."""

_REGISTERS = re.compile(r"\bregister(_envs)?\(")


def registering_packages() -> dict[str, str]:
    """The modules whose import registers environments with Gymnasium, each with its distribution; nothing is imported.

    They are those announced by an entry point, the known ones that are installed, and packages that depend on Gymnasium
    and whose `__init__.py` calls `register`.
    """
    names = {name for name in KNOWN_PACKAGES if _is_installed(name)}
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    names |= {point.module.removesuffix(".__init__") for point in points}
    # A known module of a package is enough: `PyFlyt.gym_envs` registers, `PyFlyt` does not.
    known = {name.partition(".")[0] for name in names}
    names |= {name for name in _dependants() if name not in known}
    distributions = importlib.metadata.packages_distributions()
    return {name: distributions.get(name.partition(".")[0], [name])[0] for name in sorted(names)}


def _is_installed(module: str) -> bool:
    """Whether the package of a module is there, without running any of it."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def _dependants() -> Iterator[str]:
    """Packages of distributions that need Gymnasium and call `register` where they are imported."""
    for distribution in importlib.metadata.distributions():
        needs = (re.match(r"[\w.-]+", need) for need in distribution.requires or () if "extra ==" not in need)
        if not any(need is not None and need[0].lower() == "gymnasium" for need in needs):
            continue
        for file in distribution.files or ():
            if file.name != "__init__.py" or len(file.parts) != 2:
                continue
            if _REGISTERS.search(_text(Path(str(file.locate())))):
                yield file.parts[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
