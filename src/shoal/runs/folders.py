"""Where runs live: `RESULTS/NAME/PPO_CartPole-v1_1a2b3_2026-11-15_21-30-05`."""

from __future__ import annotations

import difflib
import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.config.program_names import program_name
from shoal.errors import CheckpointError, ConfigError
from shoal.runs.atomic_files import write_file
from shoal.runs.bounded_files import bounded_bytes
from shoal.runs.checkpoint_folders import CHECKPOINT_NAME, MANIFEST, checkpoint_folder, checkpoints_of

logger = logging.getLogger("shoal.runs")

EXPERIMENT_FILE = "experiment.json"
"""The experiment as the program reads it; `config.yaml` beside it is the same for people."""

RESULTS_FILE = "result.json"
"""What a run or a trial reported: one JSON object per line."""

CHAIN_FILE = "chain.jsonl"
"""The receipts of a run: one line per iteration."""

SWEEP_FILE = "sweep.json"
"""What makes a folder that of a sweep."""
STARTED_FILE = ".started"
"""When a run or sweep was started, in seconds since 1970: the date in its name is that of a clock on some wall."""
DEFAULT_RESULTS = "~/shoal_results"
MOST_NAMES = 8  # that a message lists

DATE = "%Y-%m-%d_%H-%M-%S"

_RUN = re.compile(r".+_[0-9a-f]{5}_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)")


def results_root(results_dir: str) -> Path:
    """The folder of all experiments, with `~` and variables expanded."""
    expanded = os.path.expandvars(os.path.expanduser(results_dir))
    if unknown := re.search(r"\$(\w+|\{[^}]*\})", expanded):
        raise ConfigError(
            f"results_dir: {unknown[0]} is not set in the environment (got {results_dir!r}); set it first"
        )
    if expanded.startswith("~"):
        raise ConfigError(f"results_dir: there is no home folder for {expanded.split('/')[0]} (got {results_dir!r})")
    return Path(os.path.abspath(expanded))


def results_folder(results_dir: str, name: str) -> Path:
    """The folder of an experiment's runs."""
    root = results_root(results_dir)
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"name: must be usable as the name of a folder, without '/' (got {name!r})")
    return root / name


def env_text(env: Any) -> str:
    """An environment as a title names it: as the user typed it, a program by its name; none has the recorded steps."""
    if env is None:
        return "recorded steps"
    return program_name(env) if isinstance(env, Mapping) else str(env)


def env_label(env: Any) -> str:
    """A short name for an environment that is safe in a file name."""
    if env is None:
        text = "recorded"
    elif isinstance(env, Mapping):
        text = program_name(env)
    else:
        text = env if isinstance(env, str) else str(getattr(env, "__name__", type(env).__name__))
    path, colon, attribute = text.rpartition(":")
    if colon:
        text = f"{Path(path).name.removesuffix('.py')}.{attribute}"
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[-60:] or "env"


def make_run_folder(parent: Path, run: str, env: Any) -> Path:
    """Make a new folder for a run, after a test that files can be written there."""
    return make_dated_folder(parent, f"{run.replace(':', '-')}_{env_label(env)}")  # a colon parts hosts and lists


def make_dated_folder(parent: Path, name: str) -> Path:
    """Make a new folder whose name begins so, after a test that files can be written there."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            date = time.strftime(DATE)
            folder = parent / f"{name}_{os.urandom(3).hex()[:5]}_{date}"
            try:
                folder.mkdir()
                break
            except FileExistsError:
                continue
        try:
            check_writable(folder)
            write_file(folder / STARTED_FILE, f"{time.time():.6f}\n".encode())
        except OSError:
            (folder / STARTED_FILE).unlink(missing_ok=True)
            folder.rmdir()
            raise
    except OSError as error:
        with suppress(OSError):  # other runs are in it
            parent.rmdir()
        raise ConfigError(
            f"results_dir: {parent} cannot be written: {error.strerror or error}; set another folder with --results-dir"
        ) from error
    return folder


def check_writable(folder: Path) -> None:
    """Raise the OSError that the run would meet later."""
    probe = folder / f".tmp-probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        write_file(probe, b"x" * 4096)
    finally:
        probe.unlink(missing_ok=True)


def is_run(folder: Path) -> bool:
    """Whether the folder is a run that got as far as writing down its experiment, or holds a trainer's checkpoints.

    Something else in the place of its experiment, such as a pipe, makes it a damaged run.
    """
    if CHECKPOINT_NAME.fullmatch(folder.name) or os.path.exists(f"{folder}/{MANIFEST}"):
        return False
    return os.path.lexists(f"{folder}/{EXPERIMENT_FILE}") or bool(checkpoints_of(folder))


def runs_of(parent: Path) -> list[Path]:
    """The runs in an experiment's folder, the last started first."""
    runs = [child for child in parent.iterdir() if is_run(child)] if parent.is_dir() else []
    return sorted(runs, key=_age_key, reverse=True)


def _age_key(folder: Path) -> tuple[float, int]:
    """When it was started, and for two of one moment when its first file was written."""
    written = folder / EXPERIMENT_FILE
    return _started(folder), written.stat().st_mtime_ns if written.exists() else 0


def _started(folder: Path) -> float:
    """The time of its start; of a run of an earlier version, its date as a clock here would show it; 0 if none."""
    with suppress(CheckpointError, ValueError):
        seconds = float(bounded_bytes(folder / STARTED_FILE, 64))
        if isfinite(seconds):
            return seconds
    match = _RUN.fullmatch(folder.name)
    with suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(match[1], DATE)) if match else 0.0
    return 0.0


def find_run(text: str | Path, results_dir: str = DEFAULT_RESULTS) -> Path:
    """The run that a person means by a run folder, a checkpoint in one, an experiment's folder or name: its newest."""
    place = find_named(text, results_dir)
    folder = checkpoint_folder(place)
    if folder is None and (place / SWEEP_FILE).is_file():
        raise ConfigError(f"{place} is a sweep; give the folder of one of its trials, such as {place}/trials/00000.")
    if folder is None:
        return place
    if is_run(folder.parent):
        return folder.parent
    raise ConfigError(f"{folder} is a checkpoint without its run; give the folder of a run.")


def find_named(text: str | Path, results_dir: str = DEFAULT_RESULTS, is_trained: bool = False) -> Path:
    """The checkpoint, run or sweep that a person means by its folder, or by an experiment's folder or name: its newest.

    A path is a path first, and then one below `results_dir`; the name of an experiment may be that of its environment.
    With `is_trained`, runs of a name that have no checkpoint are passed over for an older one that has, and told.
    """
    given = Path(os.path.abspath(os.path.expanduser(text)))
    places = [given]
    if not str(text).startswith((".", "/", "~")):
        root = results_root(results_dir)
        places += [root / text, root / env_label(str(text))]
    for place in places:
        if checkpoint_folder(place) is not None or is_run(place) or (place / SWEEP_FILE).is_file():
            return place
        if found := _runs_and_sweeps(place):
            return _newest_trained(found) if is_trained else found[0]
    raise ConfigError(_not_found(str(text), given, results_dir))


def find_results(text: str) -> Path:
    """The folder whose runs a person means: by its path, or by the name of an experiment in the results folder.

    A variable is expanded where no folder has its letters: a name may have a dollar.
    """
    given = Path(os.path.abspath(os.path.expanduser(text)))
    places = [given]
    if not text.startswith((".", "/", "~")):
        places.append(results_root(DEFAULT_RESULTS) / text)
    if "$" in text:
        places.append(Path(os.path.abspath(os.path.expandvars(os.path.expanduser(text)))))
    for place in places:
        if place.is_dir():
            return place
    raise ConfigError(_not_found(text, given, DEFAULT_RESULTS))


def _newest_trained(found: list[Path]) -> Path:
    """The first with a policy to take; the very first if none has one."""
    for count, place in enumerate(found):
        if (place / SWEEP_FILE).is_file() or checkpoints_of(place):
            if count:
                more = f", nor have {count - 1} before it" if count > 1 else ""
                logger.warning("The newest run, %s, has no checkpoint%s; using %s.", found[0], more, place.name)
            return place
    return found[0]


def _runs_and_sweeps(parent: Path) -> list[Path]:
    """The runs and sweeps in an experiment's folder, newest first."""
    if not parent.is_dir():
        return []
    sweeps = [child for child in parent.iterdir() if (child / SWEEP_FILE).is_file()]
    return sorted([*runs_of(parent), *sweeps], key=_age_key, reverse=True)


def _experiments_of(root: Path) -> list[str]:
    """The names of the experiments in a results folder that have runs or sweeps."""
    children = sorted(root.iterdir()) if root.is_dir() else []
    return [child.name for child in children if _runs_and_sweeps(child)]


def _not_found(text: str, path: Path, results_dir: str) -> str:
    """What is there, for who names no run."""
    if path.is_dir() and (names := _experiments_of(path)):
        return f"{path} contains several experiments: {_listed(names)}; give one of them, e.g. {path / names[0]}."
    if path.exists():
        return f"{path} is not a run and contains none (there is no {EXPERIMENT_FILE}); give the folder of a run."
    missing = f"there is no run at {path}"
    if text.startswith((".", "/", "~")):
        return f"{missing}; give the folder that `shoal train` named at its end."
    names = _experiments_of(results_root(results_dir))
    near = difflib.get_close_matches(text.lower(), {name.lower() for name in names}, n=3, cutoff=0.5)
    close = [name for spelling in near for name in names if name.lower() == spelling]
    hint = f"; did you mean {' or '.join(close)}?" if close else f"; there are {_listed(names)}." if names else "."
    return f"{missing}, and none of that name in {results_dir}{hint}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
