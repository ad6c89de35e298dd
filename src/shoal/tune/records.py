"""What a sweep writes down, and reads back without Ray.

```
RESULTS/NAME/sweep_1a2b3_2026-11-16_21-30-05/
  sweep.json     the Sweep, its search path and shoal's version, written once; sweep.yaml is the same for people
  trials.json    a TrialRecord of every trial, in order of their number, replaced as a whole whenever one changes
  trials/00003/  the ordinary run folder of trial 3; of a user's function: result.json alone, one JSON object per line
  log.txt        one line per event; ray.log: what Ray itself had to say
  ray/           Ray Tune's own state, from which an interrupted sweep goes on
  best.yml       the experiment of the best trial, for `shoal train -f`
  index.html     the page
```
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shoal.config.sweep import Chosen, Setting, Sweep

Status = Literal["waiting", "running", "paused", "finished", "stopped early", "failed", "interrupted"]


@dataclass(frozen=True)
class Exploit:
    """A trial of a population took over another's weights, optimiser, filter and task, and changed its settings."""

    training_iteration: int
    timesteps_total: int
    source: int
    """The number of the trial it took over."""
    settings: dict[str, Any]
    """Its settings from then on."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial: what it tries, how far it is, how it ended."""

    index: int
    group: int
    """Trials that differ in nothing but the seed are of one group."""
    settings: dict[str, Any]
    """Path to value of what the search chose; those of a population as they are now."""
    seed: int | None = None
    status: Status = "waiting"
    reason: str = ""
    """Why it ended, in a sentence, e.g. `timesteps_total 50000 >= 50000`."""
    folder: str = ""
    """Relative to the sweep's folder, e.g. `trials/00003`."""
    exploits: tuple[Exploit, ...] = ()
    last_result: dict[str, float] = field(default_factory=dict)
    """The numbers of its last result, nested names as `a/b`."""
    first_settings: dict[str, Any] = field(default_factory=dict)
    """The settings it began with, where it changed them since."""


@dataclass(frozen=True)
class Event:
    """Something that the user may want to see: a line of the log, and the trial as it is after it."""

    kind: Literal["started", "result", "paused", "exploited", "stopped early", "finished", "failed", "note"]
    sentence: str
    record: TrialRecord | None = None


def read_about(folder: Path) -> dict[str, Any]:
    """All that `sweep.json` holds: `sweep`, `search_path`, `function` and the version of `shoal`."""
    return dict(json.loads((folder / "sweep.json").read_bytes()))


def read_sweep(folder: Path) -> Sweep:
    """The sweep that a folder is of."""
    tree = read_about(folder)["sweep"]
    settings = tuple(Setting(one["path"], one["kind"], tuple(one["args"])) for one in tree["settings"])
    chosen = {key: Chosen(**tree[key]) for key in ("scheduler", "search_alg")}
    return Sweep(**{**tree, "settings": settings, **chosen})


def read_trials(folder: Path) -> list[TrialRecord]:
    """Every trial that has been begun, in order of their number."""
    path = folder / "trials.json"
    found = json.loads(path.read_bytes()) if path.exists() else []
    return [TrialRecord(**{**one, "exploits": tuple(Exploit(**it) for it in one["exploits"])}) for one in found]


def read_results(folder: Path, record: TrialRecord) -> list[dict[str, Any]]:
    """All results of a trial, oldest first, as its `result.json` holds them."""
    path = folder / record.folder / "result.json"
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the last line of a process that was killed
    return found
