"""What ran: the versions that runs themselves have written down, and that of this page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.data.number_text import counted
from shoal.errors import CheckpointError
from shoal.reports.reported_runs import ReportedRun
from shoal.runs.bounded_files import small_json
from shoal.runs.chain import machines_of
from shoal.runs.checkpoint_folders import MANIFEST, checkpoints_of
from shoal.version import __version__

NAMES = {"shoal": "shoal", "python": "Python", "cpu": "processor", "blas": "BLAS"}
"""What the page calls it; packages have their own names."""


def versions(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Versions by name, with the iterations or the numbers of runs where they differ."""
    told = [_of_run(run.path) for run in runs]
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for one in told for name in one):
        counts = Counter(one[name] for one in told if name in one)
        lone = len(counts) == 1
        found[NAMES.get(name, name)] = ", ".join(
            text if lone else f"{text} ({counted(count, 'run')})" for text, count in counts.items()
        )
    return {**found, "this page": f"shoal {__version__}"}


def _of_run(folder: Path) -> dict[str, str]:
    """`{"numpy": "1.0.1, 1.0.2 from iteration 6"}`, from its chain, or else what its checkpoints say."""
    found: dict[str, str] = {}
    last: dict[str, str] = {}
    for after, machine in machines_of(folder):
        for name, version in _flat(machine).items():
            if name not in found:
                found[name] = last[name] = version
            elif last[name] != version:
                found[name] += f", {version} from iteration {after + 1}"
                last[name] = version
    if not found:
        for checkpoint in checkpoints_of(folder)[:1]:
            with suppress(OSError, ValueError, AttributeError, CheckpointError):
                found["shoal"] = str(small_json(checkpoint / MANIFEST).get("shoal"))
    return found


def _flat(machine: Mapping[str, Any]) -> dict[str, str]:
    packages = machine.get("versions")
    flat = {"shoal": machine.get("shoal"), **(packages if isinstance(packages, Mapping) else {})}
    flat |= {name: machine.get(name) for name in ("blas", "cpu")}
    return {str(name): str(value) for name, value in flat.items() if value is not None}
