"""What every runner does alike: read its task, measure, answer.

A runner is started as `run_WHO.py TASK ARGUMENTS_AS_JSON ANSWER_FILE`. Only the standard library is used here, because
this runs in every peer's environment.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

Answer = dict[str, Any]
Task = Callable[..., Answer]


def main(tasks: Mapping[str, Task]) -> None:
    """Do the task that the command line names."""
    name, arguments, answer_file = sys.argv[1:]
    Path(answer_file).write_text(json.dumps(tasks[name](**json.loads(arguments))))


def rates(steps: int, overall_s: float, learning_s: float) -> Answer:
    """Steps per second overall, in learning, and in all that is not learning, which is charged to sampling."""
    return {
        "overall": steps / overall_s,
        "sampling": steps / (overall_s - learning_s),
        "learning": steps / learning_s,
    }


def median_us(call: Callable[[], object], calls: int) -> float:
    """The median time of one call, in microseconds, after as many calls again for warming up."""
    for _ in range(calls):
        call()
    times = []
    for _ in range(calls):
        started = perf_counter()
        call()
        times.append(perf_counter() - started)
    return statistics.median(times) * 1e6


def rss_mb() -> float:
    """The memory that this process holds now."""
    return _status("VmRSS:")


def peak_rss_mb() -> float:
    """The most memory that this process has held."""
    return _status("VmHWM:")


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {key}")
