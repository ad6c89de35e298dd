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

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["waiting", "running", "paused", "finished", "stopped early", "failed", "interrupted"]


@dataclass(frozen=True)
class Exploit:
    """A trial of a population that took over another's weights, optimiser, filter and task, and changed its settings."""

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


@dataclass(frozen=True)
class Event:
    """Something that the user may want to see: a line of the log, and the trial as it is after it."""

    kind: Literal["started", "result", "paused", "exploited", "stopped early", "finished", "failed", "note"]
    sentence: str
    record: TrialRecord | None = None
