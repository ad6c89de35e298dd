"""What the tests of `shoal launch` have in common: the command they launch, and what they wait for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bed import Bed, Running, wait_until

PROBE = ("python", str(Path(__file__).with_name("probe.py")))
INTRUDER = ("python", str(Path(__file__).with_name("intruder.py")))
READY_S = 90  # on two cores, with another bed beside
LEFT_S = 60


def launch(*words: str, command: Sequence[str]) -> list[str]:
    """The words of a launch."""
    return ["shoal", "launch", *words, "--", *command]


def job_folder(running: Running, bed: Bed) -> Path:
    """The job's folder, once its cluster is up."""

    def job() -> str | None:
        assert not running.ended, running.told()
        found = re.search(r"Ray is up at .*; job (\S+)", running.err)
        return found[1] if found else None

    return bed.home / ".shoal" / "jobs" / str(wait_until(job, READY_S, f"Ray is up: {running.words}"))


def seen(output: str) -> list[Any]:
    """What the probe has told so far, in whole lines."""
    lines = output.rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in lines if line.startswith(("{", "["))]


def wait_until_seen(running: Running, nodes: Sequence[str]) -> None:
    """Wait until the probe sees these nodes and no other."""

    def is_so() -> bool:
        assert not running.ended, running.told()
        told = seen(running.out)
        return bool(told) and told[-1]["nodes"] == list(nodes)

    wait_until(is_so, READY_S, f"the command sees {list(nodes)}")


def wait_until_clean(bed: Bed, within_s: float = LEFT_S) -> None:
    """Wait until no process and no file is left on any node."""
    try:
        wait_until(lambda: not bed.left(), within_s, "nothing is left")
    except AssertionError as late:
        raise AssertionError(f"{late}, but {bed.left()}") from None
