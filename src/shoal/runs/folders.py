"""Where runs live: `RESULTS/NAME/PPO_CartPole-v1_1a2b3_2026-11-15_21-30-05`."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError
from shoal.runs.checkpoints import MANIFEST, checkpoint_folder, checkpoints_of

EXPERIMENT_FILE = "experiment.json"
"""The experiment as the program reads it; `config.yaml` beside it is the same for people."""

_RUN = re.compile(r".+_[0-9a-f]{5}_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)")


def results_folder(results_dir: str, name: str) -> Path:
    """The folder of an experiment's runs, with `~` and variables expanded."""
    expanded = os.path.expandvars(os.path.expanduser(results_dir))
    if unknown := re.search(r"\$(\w+|\{[^}]*\})", expanded):
        raise ConfigError(
            f"results_dir: {unknown[0]} is not set in the environment (got {results_dir!r}); set it first"
        )
    if expanded.startswith("~"):
        raise ConfigError(f"results_dir: there is no home folder for {expanded.split('/')[0]} (got {results_dir!r})")
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"name: must be usable as the name of a folder, without '/' (got {name!r})")
    return Path(os.path.abspath(expanded)) / name


def env_label(env: Any) -> str:
    """A short name for an environment that is safe in a file name."""
    text = env if isinstance(env, str) else str(getattr(env, "__name__", type(env).__name__))
    path, colon, attribute = text.rpartition(":")
    if colon:
        text = f"{Path(path).name.removesuffix('.py')}.{attribute}"
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")[-60:] or "env"


def make_run_folder(parent: Path, run: str, env: Any) -> Path:
    """Make a new folder for a run, after a test that files can be written there."""
    return make_dated_folder(parent, f"{run}_{env_label(env)}")


def make_dated_folder(parent: Path, name: str) -> Path:
    """Make a new folder whose name begins so, after a test that files can be written there."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            date = time.strftime("%Y-%m-%d_%H-%M-%S")
            folder = parent / f"{name}_{os.urandom(3).hex()[:5]}_{date}"
            try:
                folder.mkdir()
                break
            except FileExistsError:
                continue
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"results_dir: {parent} cannot be written: {error.strerror or error}; give another place with --results-dir"
        ) from error
    return folder


def check_writable(folder: Path) -> None:
    """Raise the OSError that the run would meet later."""
    probe = folder / f".tmp-probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        probe.write_bytes(b"x" * 4096)
    finally:
        probe.unlink(missing_ok=True)


def is_run(folder: Path) -> bool:
    """Whether the folder is a run that got as far as writing down its experiment, or holds a trainer's checkpoints."""
    if (folder / MANIFEST).exists():
        return False
    return (folder / EXPERIMENT_FILE).is_file() or bool(checkpoints_of(folder))


def runs_of(parent: Path) -> list[Path]:
    """The runs in an experiment's folder, newest first by the date in their name."""
    runs = [child for child in parent.iterdir() if is_run(child)] if parent.is_dir() else []
    return sorted(runs, key=_age_key, reverse=True)


def _age_key(folder: Path) -> tuple[str, int]:
    match = _RUN.fullmatch(folder.name)
    # Two runs of one second are told apart by the file that each writes once, at its start.
    written_once = folder / EXPERIMENT_FILE
    return (match[1] if match else "", written_once.stat().st_mtime_ns if written_once.exists() else 0)


def find_run(text: str | Path) -> Path:
    """The run that a person means by a run folder, an experiment's folder (its newest run) or a checkpoint in one."""
    path = Path(os.path.abspath(os.path.expanduser(text)))
    folder = checkpoint_folder(path)
    if folder is not None and is_run(folder.parent):
        return folder.parent
    if is_run(path):
        return path
    if runs := runs_of(path):
        return runs[0]
    if not path.exists():
        raise ConfigError(f"there is no run at {path}; give the folder that `shoal train` named at its end.")
    raise ConfigError(f"{path} is no run and holds none (there is no {EXPERIMENT_FILE}); give the folder of a run.")
