"""Whether a run films a replay by itself when it has ended, and the process that does it.

To draw, an environment must be made again, which may take a licence, a node or minutes, and its graphics may abort the
process. So only environments that come with Gymnasium or ALE are filmed without being asked, after trainings that took
much longer than that does, in a process of its own that is ended when it takes too long.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium

from shoal.runs.activity import progress

logger = logging.getLogger("shoal.runs")

LEAST_TRAINING_S = 60.0
LONGEST_S = 30.0
KNOWN = ("gymnasium.", "ale_py.")
"""Packages whose environments draw in a moment and need no licence."""


def films_itself(env: Any, training_s: float) -> bool:
    """Whether a run of this environment that has trained for so long films a replay without being asked."""
    spec = gymnasium.registry.get(env) if isinstance(env, str) else None
    if spec is None or training_s < LEAST_TRAINING_S or find_spec("av") is None:
        return False
    return str(spec.entry_point).startswith(KNOWN)


def film_own_replay(run: Path) -> None:
    """Film an episode of a run that has ended, and put it into its report; nothing is lost where that fails."""
    progress.info("filming an episode for the report")
    command = [sys.executable, "-m", "shoal", "report", str(run), "--video"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LONGEST_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.debug("No replay was filmed: %s", error)
        return
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        logger.debug("No replay was filmed: %s", lines[-1])
