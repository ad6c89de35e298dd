"""Runs a scheduler's programs to their end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shoal.errors import ClusterError


def run(
    words: list[str], cwd: Path | None = None, stdin: Path | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """A program's exit code and output; ClusterError where it cannot be run or does not answer."""
    try:
        with open(stdin or "/dev/null", "rb") as file:
            return subprocess.run(
                words,
                cwd=cwd,
                stdin=file,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=timeout_s,
            )
    except FileNotFoundError as error:
        raise ClusterError(
            f"there is no {words[0]} on PATH; load the scheduler's module, or name another with --scheduler"
        ) from error
    except PermissionError as error:
        raise ClusterError(f"{words[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"{words[0]} has not answered for {timeout_s:g} s; ask whether the scheduler is up"
        ) from error
