"""The files of the user's own code that a run uses: their hashes, and on request a copy in the run's folder.

A copy is `code/`, with `code/files.json` that lists it under the mark of the user (`runs/trust.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from shoal.config.experiment import Experiment
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError, ConfigError, NotTrusted
from shoal.runs.atomic_files import remove_tree, replace_file
from shoal.runs.bounded_files import bounded_bytes, bounded_json
from shoal.runs.trust import FILE_LIMIT, is_own, marked

CODE_FOLDER = "code"
LIST_FILE = "files.json"
_INSTALLED = ("site-packages", "dist-packages")


def user_files(experiment: Experiment, user_code: UserCode) -> dict[str, Path]:
    """The files that the user's environment, models and hooks come from, by their path in the folder that has them.

    Those are the modules that were imported from the user's folders, and the files that the configuration names.
    """
    found: dict[str, Path] = {}
    for path in {*_imported(), *_named(experiment, user_code)}:
        name = _name(path, user_code)
        if name is not None:
            found[name] = path
    return dict(sorted(found.items()))


def file_hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """The SHA-256 of each file."""
    found = {}
    for name, path in files.items():
        with suppress(OSError):
            found[name] = sha256(path.read_bytes()).hexdigest()
    return found


def keep_code(folder: Path, files: Mapping[str, Path]) -> None:
    """Put a copy of the files into a run's folder."""
    place = folder / CODE_FOLDER
    remove_tree(place)
    for name, path in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        replace_file(place / name, path.read_bytes())
    place.mkdir(exist_ok=True)
    listed = marked({"files": file_hashes(files)}, None)
    replace_file(place / LIST_FILE, json.dumps(listed, indent=1).encode())


def kept_code(folder: Path, trust: bool) -> UserCode | None:
    """The copy of its code that a run has, if it is whole; refused where it is not the user's own, unless they say so.

    None if the run has none.
    """
    place = folder / CODE_FOLDER
    if not (place / LIST_FILE).is_file():
        return None
    listed = _listed(place)
    if not trust and not is_own(listed):
        raise NotTrusted(f"{place} is not your own copy of code; read it, and add --trust if it may run here")
    for name, proof in listed["files"].items():
        _check_file(place, name, proof)
    return UserCode.at(place)


def kept_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of the copy of its code that a run has, as it is listed."""
    return dict(_listed(folder / CODE_FOLDER)["files"])


def _listed(place: Path) -> dict[str, Any]:
    listed = bounded_json(bounded_bytes(place / LIST_FILE, FILE_LIMIT), LIST_FILE)
    if not isinstance(listed, dict) or not isinstance(listed.get("files"), dict):
        raise CheckpointError(f"{place / LIST_FILE} is not what shoal writes; remove {place}")
    return listed


def _check_file(place: Path, name: Any, proof: Any) -> None:
    inside = isinstance(name, str) and not {"..", ""} & {*name.split("/")}
    content = bounded_bytes(place / name, FILE_LIMIT) if inside else b""
    if not inside or sha256(content).hexdigest() != proof:
        raise CheckpointError(f"{place / str(name)} is not what was kept (SHA-256 differs); remove {place}")


def _imported() -> Iterator[Path]:
    """The files of imported modules, but not those of which only a name is known, as of PyTorch's `_ops.py`."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and os.path.isabs(file) and os.path.isfile(file):
            yield Path(os.path.realpath(file))


def _named(experiment: Experiment, user_code: UserCode) -> Iterator[Path]:
    """The files that the configuration names: those of environments in processes of their own are imported there."""
    config = experiment.config
    texts = [config.callbacks, config.env_task_fn, config.model.custom_model, config.model.custom_action_dist]
    if isinstance(config.env, Mapping):
        texts += [config.env.get("fmu"), *_words(config.env.get("command"))]
    else:
        texts.append(config.env)
    for text in texts:
        if isinstance(text, str):
            place, colon, _ = text.rpartition(":")
            with suppress(ConfigError, OSError, ValueError):
                yield user_code.find_file(place if colon else text)


def _words(command: Any) -> list[Any]:
    return list(command) if isinstance(command, list | tuple) else []


def _name(path: Path, user_code: UserCode) -> str | None:
    """The path of a file in the first of the user's folders that has it; None if it is installed, or not in any."""
    if any(part in _INSTALLED for part in path.parts) or _is_below(path, Path(__file__).parents[1]):
        return None
    if any(_is_below(path, Path(prefix)) for prefix in {sys.prefix, sys.base_prefix}):
        return None
    for folder in user_code.folders:
        if _is_below(path, Path(folder)):
            return path.relative_to(os.path.realpath(folder)).as_posix()
    return None


def _is_below(path: Path, folder: Path) -> bool:
    return path.is_relative_to(os.path.realpath(folder))
