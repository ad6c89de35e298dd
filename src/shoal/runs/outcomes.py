"""How a run ended, in a file of its folder; there is none while it trains, and none after a kill -9."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from shoal.errors import ShoalError
from shoal.machine.redaction import redacted
from shoal.runs.atomic_files import open_own, replace_file
from shoal.runs.bounded_files import small_json

OUTCOME_FILE = "outcome.json"
ROOM_FILE = ".room"
"""What is given up for the outcome on a disk that has become full."""
ROOM_BYTES = 1 << 15

OutcomeKind = Literal["stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with a sentence such as `episode_reward_mean 481.2 >= 475`.

    `iteration` is the last that it finished, of which a full disk may have kept neither a result nor a checkpoint.
    """

    kind: OutcomeKind
    sentence: str
    signal: int | None = None
    iteration: int | None = None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write down how a run has ended."""
    told = {**asdict(outcome), "sentence": redacted(outcome.sentence)}
    content = json.dumps(told).encode()
    try:
        replace_file(folder / OUTCOME_FILE, content)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free_room(folder)
        replace_file(folder / OUTCOME_FILE, content)


def keep_room(folder: Path) -> None:
    """Take the room that the outcome will need, while there is some."""
    with suppress(OSError, ShoalError), open(open_own(folder / ROOM_FILE, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(bytes(ROOM_BYTES))


def free_room(folder: Path) -> None:
    """The outcome is written, or needs the room now."""
    with suppress(OSError):
        (folder / ROOM_FILE).unlink(missing_ok=True)


def forget_outcome(folder: Path) -> None:
    """A run begins, or goes on."""
    (folder / OUTCOME_FILE).unlink(missing_ok=True)


def read_outcome(folder: Path) -> Outcome | None:
    """How a run has ended; None if that is not written, or cannot be read."""
    try:
        found = small_json(folder / OUTCOME_FILE)
        iteration = None if found.get("iteration") is None else int(found["iteration"])
        outcome = Outcome(str(found["kind"]), str(found["sentence"]), found.get("signal"), iteration)  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return outcome if outcome.kind in get_args(OutcomeKind) else None
