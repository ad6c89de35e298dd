"""Which folders are checkpoints, by their names alone: looking at a thousand runs must not cost NumPy's import."""

from __future__ import annotations

import os
import re
from pathlib import Path

MANIFEST = "manifest.json"
LIMITS = {"state.json": 1 << 30, "experiment.json": 1 << 24, "arrays.safetensors": 1 << 40}
"""Every file of a checkpoint beside its manifest, with the most bytes it may have."""

CHECKPOINT_NAME = re.compile(r"checkpoint_(\d{6,})")
_CLASSIC_FILE = re.compile(r"checkpoint-?\d+")


def checkpoint_folder(path: Path) -> Path | None:
    """The checkpoint folder that `path` is, or is in; None if it is neither."""
    inside = CHECKPOINT_NAME.fullmatch(path.parent.name) and (path.is_file() or _CLASSIC_FILE.fullmatch(path.name))
    folder = path.parent if inside else path
    named = CHECKPOINT_NAME.fullmatch(folder.name) is not None
    is_one = (folder / MANIFEST).is_file() or (named and (folder.is_dir() or aside_of(folder).is_dir()))
    return folder if is_one else None


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoint folders in a run folder, newest first by their number."""
    names = {name.removeprefix(".old-") for name in os.listdir(folder)} if folder.is_dir() else set()
    numbered = [(int(match[1]), name) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))]
    return [folder / name for _, name in sorted(numbered, reverse=True)]


def iteration_of(checkpoint: Path) -> int:
    """The iteration in the name of a checkpoint."""
    return int(checkpoint.name.rpartition("_")[2])


def aside_of(target: Path) -> Path:
    """Where the checkpoint that another replaces is kept until that is in its place."""
    return target.with_name(f".old-{target.name}")
