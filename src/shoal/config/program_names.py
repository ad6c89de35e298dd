"""What an environment that is a program is called; apart from its configuration, since a list of runs needs no more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_INTERPRETERS = re.compile(r"(python|julia|octave|octave-cli|perl|ruby|node|bash|sh|mpirun|mpiexec|srun)[\d.]*")


def program_name(env: Mapping[str, Any]) -> str:
    """What a program is called in the names of runs: its file without folder and ending."""
    if "fmu" in env:
        return PurePath(env["fmu"]).stem
    words = env.get("command") or ("program",)
    names = [PurePath(word).name for word in words if not word.startswith("-")]
    own = [name for name in names if not _INTERPRETERS.fullmatch(name) and not name.isdigit()]
    return PurePath((own or names or ["program"])[0]).stem
