"""Checkpoints: folders that are whole and proven, or refused.

A checkpoint is `checkpoint_000010/` with `state.json`, `arrays.safetensors`, `experiment.json` and `manifest.json`. The
manifest holds the size and SHA-256 of the others and of itself, because safetensors has no checksum of its own. It is
made in a temporary folder beside its place, synced, and renamed. There is no pickle, so reading one runs no code.

A run of RLlib's algorithms has RLlib's own checkpoint in it too, the folder `rllib/`, under the same manifest. Those
files are pickles: here they are only compared with their hashes, and who opens them asks `runs/seals.py` first.

Replay is in the folder `replay/`, in files that checkpoints share (`runs/row_segments.py`). That is format 2, and with
frames of images, which are kept once, format 3. What needs no later one is written in an earlier format, which earlier
versions read; each is read for ever.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.state import State
from shoal.errors import CheckpointError, RowsLost, ShoalError
from shoal.runs.array_files import Arrays, arrays_bytes, arrays_in
from shoal.runs.atomic_files import remove_folder, remove_tree, sync_folder, write_file
from shoal.runs.bounded_files import bounded_bytes, bounded_json, check_count, proof_of
from shoal.runs.checkpoint_folders import LIMITS, MANIFEST, aside_of, checkpoint_folder, checkpoints_of, iteration_of
from shoal.runs.row_segments import (
    ROWS_FOLDER,
    SavedRows,
    Snapshot,
    check_rings,
    have_frames,
    read_rings,
    row_files,
    saved_rows,
    snapshot,
    write_rings,
)
from shoal.version import __version__

logger = logging.getLogger("shoal.checkpoints")

PLAIN_FORMAT, ROWS_FORMAT, FORMAT = 1, 2, 3
"""The format of what has no rows that checkpoints share, of what has, and of what has frames that rows share."""
FOREIGN_FOLDER, FOREIGN_LIMIT = "rllib", 1 << 40
"""The folder for the files of somebody else's checkpoint, and the most bytes that one of them may have."""
MANIFEST_LIMIT = 1 << 22


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, after every byte of it has been checked."""

    state: State
    experiment_tree: dict[str, Any]
    summary: dict[str, Any]
    path: Path
    saved_rows: dict[str, SavedRows] = field(default_factory=dict)


def write_checkpoint(
    folder: Path, state: State | Snapshot, experiment_tree: Mapping[str, Any], summary: Mapping[str, Any]
) -> Path:
    """Write `folder/checkpoint_NNNNNN`, named by the summary's `training_iteration`; return once it is on the disk.

    A snapshot may leave out rows that an earlier checkpoint has, which it then shares.
    """
    target = folder / f"checkpoint_{int(summary['training_iteration']):06d}"
    taken = snapshot(state, copies=False) if isinstance(state, State) else state
    contents = {
        "state.json": _json_bytes(taken.values, "state.json"),
        "arrays.safetensors": arrays_bytes(taken.arrays, "arrays.safetensors"),
        "experiment.json": _json_bytes(experiment_tree, "experiment.json"),
        **taken.files,
    }
    assert all(_is_foreign(name) for name in taken.files)
    manifest: dict[str, Any] = {
        "format": _format_of(taken),
        "shoal": __version__,
        "files": {name: proof_of(content) for name, content in contents.items()},
        "summary": dict(summary),
    }
    _manifest_bytes(manifest)  # which refuses what cannot be saved, before there is a folder
    temporary = folder / f".tmp-{target.name}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(temporary / name, content)
        if taken.rings:
            manifest["rings"], files = write_rings(temporary, taken.rings)
            manifest["files"] |= files
        write_file(temporary / MANIFEST, _manifest_bytes(manifest))
        for folder_in_it in {(temporary / name).parent for name in manifest["files"]} - {temporary}:
            sync_folder(folder_in_it)
        sync_folder(temporary)
        _put_in_place(temporary, target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise CheckpointError(
                f"checkpoint {target} could not be written: {error.strerror or error}; earlier checkpoints are intact. "
                f"Free some space or make the folder writable."
            ) from error
        raise
    return target


def _format_of(taken: Snapshot) -> int:
    """The earliest format that has room for this."""
    if not taken.rings:
        return PLAIN_FORMAT
    return FORMAT if any(one.ring.frames for one in taken.rings.values()) else ROWS_FORMAT


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename the finished folder to its name, with an older checkpoint of that name kept aside until it is done."""
    aside = aside_of(target)
    if target.exists():
        remove_tree(aside)
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except OSError:
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        raise
    sync_folder(target.parent)
    remove_tree(aside)


def _place(target: Path) -> Path:
    """Where a checkpoint's files are: kept aside, if its writer died between the two renames."""
    return target if target.is_dir() or not aside_of(target).is_dir() else aside_of(target)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint folder, a file in one (`checkpoint_000010/checkpoint-10`), or a run folder's newest good."""
    given = Path(path).expanduser()
    folder = checkpoint_folder(given)
    if folder is not None:
        return _read_folder(folder)
    if given.is_dir():
        found = newest_good(given)
        if found is None:
            raise CheckpointError(
                f"{given} contains no readable checkpoint; give the folder of a run or a checkpoint_NNNNNN."
            )
        return found
    raise CheckpointError(f"there is no checkpoint at {given}; give the folder of a run or a checkpoint_NNNNNN in one.")


def read_in_place(path: Path) -> Checkpoint:
    """Read a checkpoint of a run; one whose name is of another iteration is in the place of that."""
    found = _read_folder(path)
    _check_name(path, found.summary)
    return found


def _check_name(path: Path, summary: Mapping[str, Any]) -> None:
    iteration = int(summary["training_iteration"])
    if iteration_of(path) != iteration:
        raise CheckpointError(
            f"checkpoint {path} is refused: it is of iteration {iteration}, and has another name; its own is "
            f"checkpoint_{iteration:06d}."
        )


def newest_good(run_folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run that proves whole; those refused are logged with the reason."""
    candidates = checkpoints_of(run_folder)
    refused: set[Path] = set()
    while candidates:
        for place, path in enumerate(candidates, start=1):
            try:
                return read_in_place(path)
            except CheckpointError as error:
                if path.exists():
                    refused.add(path)
                    more = " Trying the one before it." if place < len(candidates) else ""
                    logger.warning("%s%s", error, more)
        # A live run may have written a newer one and removed those we had listed.
        candidates = [path for path in checkpoints_of(run_folder) if path not in refused and path not in candidates]
    return None


def newest_summary(run_folder: Path) -> dict[str, Any] | None:
    """The summary of the newest checkpoint whose manifest is whole; the other files are not looked at."""
    for path in checkpoints_of(run_folder):
        with suppress(CheckpointError):
            summary = dict(_checked_manifest(_place(path) / MANIFEST)["summary"])
            _check_name(path, summary)
            return summary
    return None


def checkpoint_hash(path: Path) -> str | None:
    """The SHA-256 that stands for a checkpoint, that of its manifest; None if the manifest is damaged."""
    with suppress(CheckpointError):
        return hashlib.sha256(_manifest_bytes(_checked_manifest(_place(path) / MANIFEST))).hexdigest()
    return None


def checkpoint_size(path: Path) -> int:
    """The bytes of all files of a checkpoint."""
    return sum(file.stat().st_size for file in _place(path).rglob("*") if file.is_file() and not file.is_symlink())


def tidy(run_folder: Path) -> None:
    """Clean up after a writer that died: only for the process that holds the run's lease."""
    for child in list(run_folder.iterdir()):
        if child.name.startswith(".old-checkpoint_") and not (place := child.with_name(child.name[5:])).exists():
            os.rename(child, place)
        elif child.name.startswith((".old-checkpoint_", ".tmp-checkpoint_")):
            remove_tree(child)
        elif child.name.startswith(".tmp-"):
            child.unlink(missing_ok=True)


def best_checkpoint(run_folder: Path, score: str) -> Path | None:
    """The checkpoint whose result `score` is the largest, or with `min-` in front the smallest; the newest of equals.

    None if no checkpoint has that result.
    """
    sign, name = (-1, score[4:]) if score.startswith("min-") else (1, score)
    found: list[tuple[float, Path]] = []
    for path in checkpoints_of(run_folder):
        with suppress(CheckpointError):
            value = _checked_manifest(_place(path) / MANIFEST)["summary"].get(name)
            if value is not None:
                found.append((sign * value, path))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def prune(run_folder: Path, keep: int | None, score: str | None = None, spared: Sequence[Path] = ()) -> None:
    """Remove all but the newest `keep` checkpoints, the best by `score`, and those spared; None keeps all."""
    if keep is None:
        return
    try:
        best = best_checkpoint(run_folder, score) if score is not None else None
        for path in checkpoints_of(run_folder)[max(keep, 1) :]:
            if path != best and path not in spared:
                remove_folder(path)
    except OSError as error:  # whatever stays is tried again after the next save
        logger.warning("old checkpoints of %s could not be removed: %s", run_folder, error.strerror or error)


def _read_folder(folder: Path) -> Checkpoint:
    """Check every byte, then parse."""
    place = _place(folder)
    manifest = _checked_manifest(place / MANIFEST)
    files = manifest["files"]
    limits = {**LIMITS, **{name: FOREIGN_LIMIT for name in files if _is_foreign(name)}}
    of_rows = row_files(manifest.get("rings", {}))
    if odd := sorted(_files_in(place) ^ {*limits, *of_rows}):
        what = "is missing" if odd[0] in (*limits, *of_rows) else "does not belong there"
        raise CheckpointError(f"checkpoint {folder} is refused: {odd[0]} {what}.")
    contents: dict[str, bytes] = {}
    with _refused(folder):
        for name, limit in limits.items():
            contents[name] = bounded_bytes(place / name, limit, files[name]["bytes"])
            if proof_of(contents[name]) != files[name]:
                raise CheckpointError(f"{name} is not what was saved (SHA-256 differs)")
        values = bounded_json(contents["state.json"], "state.json")
        tree = bounded_json(contents["experiment.json"], "experiment.json")
        if not isinstance(values, dict) or not isinstance(tree, dict):
            raise CheckpointError("state.json and experiment.json must hold mappings")
        arrays = _arrays(contents.pop("arrays.safetensors"))
        rows, rings = read_rings(place, manifest)
    foreign = {name: content for name, content in contents.items() if name not in LIMITS}
    state = State(values, {**arrays, **rows}, foreign, rings)
    numberings = {name: ring.numbering for name, ring in rings.items()}
    return Checkpoint(state, tree, manifest["summary"], folder, saved_rows(folder, manifest, numberings))


def write_sharing(
    folder: Path,
    state: State,
    saved: Mapping[str, SavedRows],
    experiment_tree: Mapping[str, Any],
    summary: Mapping[str, Any],
) -> tuple[Path, dict[str, SavedRows]]:
    """Write a checkpoint that shares the rows which an earlier one has, and those that the next may share."""
    try:
        taken = snapshot(state, saved, copies=False)
        path = write_checkpoint(folder, taken, experiment_tree, summary)
    except RowsLost:  # but all of them are still in memory
        taken = snapshot(state, copies=False)
        path = write_checkpoint(folder, taken, experiment_tree, summary)
    return path, rows_of(path, taken)


def rows_of(path: Path, taken: Snapshot) -> dict[str, SavedRows]:
    """What a checkpoint has of the rings of the snapshot that it was written from, to be shared with the next."""
    numberings = {name: one.ring.numbering for name, one in taken.rings.items()}
    if numberings:
        with suppress(CheckpointError):  # the checkpoint is there; the next then shares nothing with it
            return saved_rows(path, _checked_manifest(path / MANIFEST), numberings)
    return {}


def _files_in(place: Path) -> set[str]:
    """The files of a checkpoint beside its manifest, by their paths in it."""
    found: set[str] = set()
    for child in place.iterdir():
        # Network file systems and desktops leave files of their own behind.
        if child.name == MANIFEST or child.name.startswith((".nfs", ".DS_Store")):
            continue
        if child.name in (FOREIGN_FOLDER, ROWS_FOLDER) and child.is_dir() and not child.is_symlink():
            below = (path for path in child.rglob("*") if not path.is_dir() or path.is_symlink())
            found |= {path.relative_to(place).as_posix() for path in below if not path.name.startswith(".nfs")}
        else:
            found.add(child.name)
    return found


def _is_foreign(name: Any) -> bool:
    """Whether a path is one of a file in the folder of somebody else's checkpoint, and leads nowhere else."""
    parts = name.split("/") if isinstance(name, str) else []
    return len(parts) > 1 and parts[0] == FOREIGN_FOLDER and not {"", ".", ".."} & {*parts}


def _arrays(content: bytes) -> Arrays:
    """The arrays; a network or an optimiser that is not finite can do nothing but spread that."""
    arrays = {name: _owned(array) for name, array in arrays_in(content).items()}
    for name, array in arrays.items():
        learned = name.startswith(("policy/", "learner/")) and not name.startswith("learner/replay.")
        if learned and np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise CheckpointError(f"{name} holds numbers that are not finite")
    return arrays


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Turn what a checkpoint's contents do to whoever takes them over into a sentence.

    Every byte may be what was saved, and still not be what shoal saves.
    """
    try:
        yield
    except ShoalError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
        raise CheckpointError(f"{_not_ours(path)}: {type(error).__name__}: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise CheckpointError(f"{_not_ours(path)}: it is too deep or too large.") from error


def _not_ours(path: Path) -> str:
    return f"checkpoint {path} is refused: it is whole, but not what shoal saves"


@contextmanager
def _refused(folder: Path) -> Iterator[None]:
    """Name the checkpoint in what is wrong with its files."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {folder} is refused: {error}.") from error


def _checked_manifest(path: Path) -> dict[str, Any]:
    """The manifest, if it is byte for byte what we would write and of a format we know."""
    with _refused(path.parent):
        content = bounded_bytes(path, MANIFEST_LIMIT)
    try:
        manifest = json.loads(content)
        version = manifest["format"]
        if isinstance(version, int) and version > FORMAT:
            raise CheckpointError(
                f"checkpoint {path.parent} has format {version}, this shoal {__version__} reads up to {FORMAT}: "
                f"install the shoal that wrote it, or a newer one."
            )
        manifest.pop("sha256")
        if content != _manifest_bytes(manifest) or version not in (PLAIN_FORMAT, ROWS_FORMAT, FORMAT):
            raise ValueError("its own SHA-256 differs")
        _check_parts(manifest["files"], manifest["summary"])
        check_rings(manifest.get("rings", {}), manifest["files"])
        parts = "rings" in manifest, have_frames(manifest.get("rings", {}))
        if parts != (version >= ROWS_FORMAT, version == FORMAT):
            raise ValueError(f"format {version} has other parts")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path.parent} is refused: {path.name} is damaged ({error}).") from error
    return dict(manifest)


def _check_parts(files: Any, summary: Any) -> None:
    """Raise ValueError for a manifest whose parts are not what we write, though its hash is right."""
    if not isinstance(files, dict) or not isinstance(summary, dict):
        raise ValueError("files and summary must be mappings")
    for name in (*LIMITS, *files):
        proof = files.get(name)
        if not isinstance(proof, dict) or type(proof.get("bytes")) is not int:
            raise ValueError(f"it does not tell the size of {name}")
    if odd := [name for name, value in summary.items() if not isinstance(value, int | float)]:
        raise ValueError(f"summary.{odd[0]} must be a number")
    if type(summary.get("training_iteration")) is not int:
        raise ValueError("summary has no training_iteration")


def _json_bytes(values: Any, name: str) -> bytes:
    try:
        content = json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
        check_count(content, name)
        return content
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{name} cannot be saved: {error} (finite numbers, text, lists, mappings can)."
        ) from error


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The one way to write a manifest, its own hash last."""
    proof = hashlib.sha256(_json_bytes(manifest, MANIFEST)).hexdigest()
    try:
        return json.dumps({**manifest, "sha256": proof}, allow_nan=False, indent=1).encode() + b"\n"
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{MANIFEST} cannot be saved: {error}.") from error


def _owned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.flags.writeable else array.copy()
