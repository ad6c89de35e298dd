"""Compilers of this machine: which there are, and running them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import ShoalError

C_FLAGS = ("-std=c99", "-O3", "-Wall", "-Wextra", "-pedantic")
FORTRAN_FLAGS = ("-O2",)
TIMEOUT_S = 900.0


def c_compiler() -> list[str] | None:
    """The C compiler's words: `$CC`, or the first that is found; None without one."""
    return _compiler("CC", ("cc", "gcc", "clang"))


def fortran_compiler() -> list[str] | None:
    """The Fortran compiler's words: `$FC`, or the first that is found; None without one."""
    return _compiler("FC", ("gfortran", "ifx", "flang-new", "flang"))


def no_compiler(language: str, variable: str) -> str:
    """Why nothing could be compiled here."""
    said = os.environ.get(variable, "").strip()
    if said:
        return f"{variable} is {said!r}, and there is no such {language} compiler here"
    return f"there is no {language} compiler here"


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a compiler, or what it made; returns what it printed, and its failure is a sentence."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ShoalError(f"the export cannot be proved: {command[0]} failed: {error}") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:400] or "it said nothing; CC and FC name the compilers"
        raise ShoalError(f"the export cannot be proved: {command[0]} ended with code {done.returncode}: {said}")
    return done.stdout + done.stderr


def version_of(compiler: Sequence[str]) -> str:
    """The first line in which a compiler tells its version."""
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return compiler[0]
    lines = done.stdout.splitlines()
    return lines[0].strip() if lines else compiler[0]


def _compiler(variable: str, names: Sequence[str]) -> list[str] | None:
    said = shlex.split(os.environ.get(variable, ""))
    if said:
        return said if shutil.which(said[0]) else None
    found = next((name for name in names if shutil.which(name)), None)
    return None if found is None else [found]
