"""Which run another continues: `fork.json` in its folder, written when it was forked."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.errors import CheckpointError
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import bounded_bytes, bounded_json
from shoal.runs.folders import is_run

FORK_FILE = "fork.json"
FILE_LIMIT = 1 << 20


@dataclass(frozen=True)
class Lineage:
    """Where a run came from; `changes` are `key: old -> new`, `link` is the parent's receipt of the iteration."""

    parent: str
    iteration: int
    link: str | None
    changes: tuple[str, ...]


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Write down where a run came from."""
    replace_file(folder / FORK_FILE, json.dumps(asdict(lineage), indent=1).encode())


def read_lineage(folder: Path) -> Lineage | None:
    """Where a run came from; None if it is no fork, or that cannot be read."""
    try:
        found = bounded_json(bounded_bytes(folder / FORK_FILE, FILE_LIMIT), FORK_FILE)
        changes = tuple(str(change) for change in found["changes"])
        return Lineage(str(found["parent"]), int(found["iteration"]), found.get("link"), changes)
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None


def parent_of(folder: Path) -> Path | None:
    """The folder of the run that this one continues, if it is still there."""
    lineage = read_lineage(folder)
    if lineage is None:
        return None
    parent = Path(lineage.parent)
    with suppress(OSError):
        return parent if parent.is_absolute() and is_run(parent) else None
    return None
