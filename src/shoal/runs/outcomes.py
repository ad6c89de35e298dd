"""How a run ended, in a file of its folder; there is none while it trains, and none after a kill -9."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from shoal.machine.redaction import redacted
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import small_json

OUTCOME_FILE = "outcome.json"

OutcomeKind = Literal["stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with a sentence such as `episode_reward_mean 481.2 >= 475`."""

    kind: OutcomeKind
    sentence: str
    signal: int | None = None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write down how a run has ended."""
    told = {**asdict(outcome), "sentence": redacted(outcome.sentence)}
    replace_file(folder / OUTCOME_FILE, json.dumps(told).encode())


def forget_outcome(folder: Path) -> None:
    """A run begins, or goes on."""
    (folder / OUTCOME_FILE).unlink(missing_ok=True)


def read_outcome(folder: Path) -> Outcome | None:
    """How a run has ended; None if that is not written, or cannot be read."""
    try:
        found = small_json(folder / OUTCOME_FILE)
        outcome = Outcome(str(found["kind"]), str(found["sentence"]), found.get("signal"))  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return outcome if outcome.kind in get_args(OutcomeKind) else None
