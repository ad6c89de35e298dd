"""Saves a circle of rows for ever, as replay is saved: each checkpoint shares with the one before what both have.

A program that is killed while it does so: `python save_replay.py FOLDER`. It goes on from the newest good checkpoint,
and prints the number of the last row of each checkpoint that is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from shoal.data.state import Ring, State
from shoal.runs import row_segments
from shoal.runs.checkpoints import Checkpoint, newest_good, prune, rows_of, tidy, write_checkpoint
from shoal.runs.row_segments import snapshot

RING = "learner/replay"
ROWS = 3000  # of the circle
NEW = 370  # with each checkpoint
COLUMNS = 32


def state_to(end: int, numbering: str) -> State:
    """A circle of rows, each of which has its number in all of its columns."""
    ring = Ring(numbering, max(0, end - ROWS), end, ROWS, ("x",))
    arrays = {f"{RING}.x.{place}": rows(*span) for place, span in enumerate(ring.stretches())}
    return State({"end": end}, arrays, rings={RING: ring})


def rows(begin: int, end: int) -> np.ndarray:
    """The rows of these numbers."""
    return np.repeat(np.arange(begin, end, dtype=np.int64)[:, None], COLUMNS, axis=1)


def is_whole(found: Checkpoint) -> bool:
    """Whether a checkpoint has every row that it says it has."""
    ring = found.state.rings[RING]
    arrays = [found.state.arrays[f"{RING}.x.{place}"] for place in range(len(ring.stretches()))]
    same = [np.array_equal(array, rows(*span)) for array, span in zip(arrays, ring.stretches(), strict=True)]
    return ring.end == found.state.values["end"] and ring.begin == max(0, ring.end - ROWS) and all(same)


def main(folder: Path) -> None:
    """Save until somebody ends it."""
    row_segments.SEGMENT_BYTES = 1 << 17  # so that the circle has several of them
    tidy(folder)
    start = newest_good(folder)
    known = start.saved_rows if start is not None else {}
    numbering = start.state.rings[RING].numbering if start is not None else "one"
    end = start.state.values["end"] if start is not None else 0
    while True:
        end += NEW
        taken = snapshot(state_to(end, numbering), known, copies=False)
        path = write_checkpoint(folder, taken, {}, {"training_iteration": end // NEW, "end": end})
        known = rows_of(path, taken)
        prune(folder, 2, None, [])
        sys.stdout.write(f"{end}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
