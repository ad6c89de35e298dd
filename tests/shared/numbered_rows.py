"""A ring of rows that have their numbers in them, in files that checkpoints share, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.state import Ring, State
from shoal.runs.row_segments import (
    NewRows,
    SavedRows,
    Snapshot,
    check_rings,
    read_rings,
    saved_rows,
    snapshot,
    write_rings,
)

PLACES = 50
"""No multiple of a segment's rows, so that the circle begins anew in the midst of one."""
SEGMENT_BYTES = 128
"""So that a segment has eight rows."""


def numbered(begin: int, end: int, places: int = PLACES, name: str = "r", **more: Any) -> State:
    """A ring of rows of sixteen bytes that have their numbers in them."""
    ring = Ring(more.pop("numbering", "a"), begin, end, places, ("x", "y"), **more)
    arrays: dict[str, np.ndarray] = {}
    for k, (first, last) in enumerate(ring.stretches()):
        numbers = np.arange(first, last)
        arrays[f"{name}.x.{k}"] = numbers.astype(np.float64)[:, None]
        arrays[f"{name}.y.{k}"] = np.stack([numbers, -numbers], axis=1).astype(np.int32)
    return State({"end": end}, arrays, rings={name: ring})


def saved(place: Path, state: State, before: dict[str, SavedRows] | None = None) -> tuple[dict[str, Any], Any]:
    """A folder with the segments of a state: what its manifest says, and what the next one may share."""
    place.mkdir()
    rings, files = write_rings(place, snapshot(state, before, copies=False).rings)
    manifest = {"rings": rings, "files": files}
    check_rings(rings, files)
    return manifest, saved_rows(place, manifest, {name: ring.numbering for name, ring in state.rings.items()})


def assert_read(place: Path, manifest: dict[str, Any], state: State) -> None:
    arrays, rings = read_rings(place, manifest)
    assert {name: (array.dtype, array.tolist()) for name, array in arrays.items()} == {
        name: (array.dtype, array.tolist()) for name, array in state.arrays.items()
    }
    for name, ring in state.rings.items():
        assert {*rings[name].columns} == {*ring.columns}
        own = {"numbering": rings[name].numbering, "columns": rings[name].columns}
        assert rings[name] == replace(ring, follows=None, **own)
        assert rings[name].numbering != ring.numbering, "it is read once more, and goes on in its own way"


def new_rows(taken: Snapshot, name: str = "r") -> list[NewRows]:
    return [piece for piece in taken.rings[name].pieces if isinstance(piece, NewRows)]
