"""Whether the `result.json` of a run has what its iterations reported."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from shoal.data.findings import Finding
from shoal.data.results import is_number
from shoal.runs.bounded_files import MOST_RESULTS_BYTES, bounded_lines, open_regular
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.folders import RESULTS_FILE
from shoal.runs.lineage import read_lineage
from shoal.runs.outcomes import read_outcome

REMEDY = "the run can go on; plots and reports lack these iterations"


def checked_results(folder: Path, iteration: int = 0) -> Finding:
    """What is right and wrong with a run's results; `iteration` is the newest that something else tells of."""
    try:
        with open_regular(folder / RESULTS_FILE, MOST_RESULTS_BYTES) as file:
            good = wrong = 0
            is_cut_off = False
            for line in bounded_lines(file):
                is_cut_off = line.startswith(b"{") and not line.endswith(b"\n")
                if not is_cut_off and _is_result(line):
                    good += 1
                elif not is_cut_off:
                    wrong += 1
    except FileNotFoundError:
        return _without_results(folder, iteration, "it is missing")
    except OSError as error:
        why = {errno.ELOOP: "is a link", errno.EINVAL: "is not a regular file"}.get(error.errno or 0)
        return _problem(f"it {why}" if why else f"it cannot be read ({error.strerror})")
    if wrong:
        return _problem(f"{wrong} of its {good + wrong} lines are no results")
    if not good:
        return _without_results(folder, iteration, "it has no result")
    if is_cut_off:
        return Finding(RESULTS_FILE, "note", f"{good} results; its last line is cut off, and does not count")
    return Finding(RESULTS_FILE, "ok", f"{good} results")


def _without_results(folder: Path, iteration: int, what: str) -> Finding:
    lineage = read_lineage(folder)  # a fork begins with its parent's checkpoint and chain
    first = 0 if lineage is None else lineage.iteration
    saved = max((int(path.name.rpartition("_")[2]) for path in checkpoints_of(folder)), default=0)
    outcome = read_outcome(folder)
    if max(iteration, saved) > first or (outcome is not None and outcome.kind == "stopped"):
        return _problem(f"{what}, though the run has made iterations")
    return Finding(RESULTS_FILE, "note", f"{what}, and no iteration was finished")


def _problem(text: str) -> Finding:
    return Finding(RESULTS_FILE, "problem", text, REMEDY)


def _is_result(line: bytes) -> bool:
    """Whether a line is the result of an iteration, with numbers where each has one."""
    try:
        result: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(result, dict) or not is_number(result.get("training_iteration")):
        return False
    shown = [result.get(name) for name in ("timesteps_total", "episode_reward_mean")]
    return all(value is None or is_number(value) for value in shown)
