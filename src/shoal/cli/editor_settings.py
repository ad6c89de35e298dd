"""What editors are told: the schema in `.vscode`, and the setting that uses it, beside all that is there already."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError

EDITOR_FILES = ("experiment*.yml", "sweep*.yml", "best.yml")
KEY = "yaml.schemas"
SCHEMA = ".vscode/shoal-experiments.schema.json"


def write_editor_settings(folder: Path, schema: Callable[[], str], files: Sequence[str]) -> list[str]:
    """Write the schema and the settings of Visual Studio Code below a folder; what to tell of it, in lines."""
    settings = folder / ".vscode" / "settings.json"
    text = _read(settings)
    tree, wanted = _tree(settings, text, files), {f"./{SCHEMA}": list(files)}
    schemas = tree.get(KEY, {})
    if not isinstance(schemas, dict):
        raise ConfigError(f"{settings}: {KEY} is no mapping of schemas to files; {_by_hand(files)}")
    _make_folder(settings.parent)
    write_whole(folder / SCHEMA, schema())
    if wanted.items() <= schemas.items():
        return [f"Written: {SCHEMA}; .vscode/settings.json uses it already."]
    indent = re.search(r"\n([ \t]+)", text)
    merged = {**tree, KEY: {**schemas, **wanted}}
    write_whole(settings, json.dumps(merged, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n")
    return [
        f"Written: {SCHEMA}, and in .vscode/settings.json that it is for {', '.join(files)}.",
        "Visual Studio Code needs the extension redhat.vscode-yaml.",
    ]


def write_whole(path: Path, text: str) -> None:
    """Write a file, which is the old or the new one at every moment; where it is a link, the file that it leads to."""
    from shoal.runs.atomic_files import replace_file

    try:
        place = path.resolve()
        if not place.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {place.parent}; make it, or give another place")
        replace_file(place, text.encode())
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "its links lead nowhere"
        raise ConfigError(f"{path} cannot be written: {why}; give another place") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from None


def _read(settings: Path) -> str:
    try:
        return settings.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{settings} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}"
        ) from None


def _tree(settings: Path, text: str, files: Sequence[str]) -> dict[str, Any]:
    """The settings that are there; comments, which would be lost, are refused."""
    try:
        tree = json.loads(text) if text.strip() else {}
    except ValueError:
        raise ConfigError(
            f"{settings} has comments or is no plain JSON, and would lose them; {_by_hand(files)}"
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{settings} is no mapping of settings; {_by_hand(files)}")
    return tree


def _by_hand(files: Sequence[str]) -> str:
    entry = json.dumps({f"./{SCHEMA}": list(files)})
    return f'type `shoal config schema -o {SCHEMA}`, and add "{KEY}": {entry} by hand'
