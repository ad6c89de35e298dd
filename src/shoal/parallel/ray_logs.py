"""What Ray's processes have written down about themselves."""

from __future__ import annotations

import re
from pathlib import Path

MOST_LAST_LINES = 3  # lines
RAYS_OWN = re.compile(
    r":job_id:|:actor_name:|\*\*\* |.*@ +0x|\[\d{4}-\d\d-\d\d .*\] \w+\.cc:"
)  # lines of a worker's log
FATAL = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+ [EC] .*?\] (?:\(\w+\) )?\w+\.(?:cc|h):\d+: +(?P<words>.+)")


def crash_summary(lines: list[str]) -> str:
    """What is worth telling of a dead process's last lines: in a crash the line before it, and where it happened."""
    crash = next((k for k, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if crash is None:
        return " | ".join(lines[-MOST_LAST_LINES:])
    where = [line for line in lines[crash + 1 :] if line.startswith("File ")]
    return " | ".join([*lines[max(crash - 1, 0) : crash + 1], *where[:1]])


def output_lines(file: Path) -> list[str]:
    """The last lines of a worker's log that say something."""
    return [line.strip() for line in _tail(file) if line.strip() and not RAYS_OWN.match(line)]


def errors_in(file: Path) -> list[str]:
    """What a daemon of Ray calls an error in its log, in its own words."""
    found = [match["words"] for line in _tail(file) if (match := FATAL.match(line))]
    return [words.rpartition("Check failed:")[2].strip() for words in found]  # without Ray's plea to report it


def _tail(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 4096))
        return stream.read().decode(errors="replace").splitlines()
