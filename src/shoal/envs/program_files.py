"""The file of a program that is to be started, looked at before: where it is, and whether it can be run at all."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from shoal.errors import ConfigError

MOST_FIRST_LINE_BYTES = 256


def located(program: str, path: str) -> Path | None:
    """What a name means in these folders, as PATH has them; if no program, a file of this name; None without one."""
    found = shutil.which(program, path=path)
    if found is not None:
        return Path(found)
    files = [Path(program)] if os.sep in program else [Path(place, program) for place in path.split(os.pathsep)]
    return next((file for file in files if file.exists()), None)


def runnable(file: Path, named: str) -> str:
    """The path of a program's file; refuses what cannot be run. `named` is where the user has named it."""
    if file.is_dir():
        raise ConfigError(f"{named}: {file} is a folder; name the program in it")
    if not os.access(file, os.X_OK):
        raise ConfigError(f"{named}: {file} may not be executed; type chmod +x {file}, or name its interpreter")
    interpreter = _interpreter(file)
    if interpreter and not os.path.exists(interpreter):
        raise ConfigError(
            f"{named}: the first line of {file} names the interpreter {interpreter!r}, which is not there; correct the "
            "line, or name the interpreter in the command"
        )
    return str(file)


def _interpreter(file: Path) -> str:
    """What the first line of a script says that it is run by; empty if it is no script."""
    try:
        with open(file, "rb") as script:
            line = script.read(MOST_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:  # a program may be for running alone
        return ""
    if not line.startswith(b"#!"):
        return ""
    return os.fsdecode(re.split(rb"[ \t]+", line[2:].lstrip(b" \t"))[0])  # a \r of Windows belongs to its name
