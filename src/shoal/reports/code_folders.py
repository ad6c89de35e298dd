"""Where the user's own code is, for commands that do a thing again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_CODE = re.compile(r"[\w./~-]{1,200}(:[\w.]+)?")


def entering_code(search_path: Iterable[str], experiment: Mapping[str, Any]) -> str:
    """`cd FOLDER && ` if the experiment names code of the user's own that is found in a folder of the search path."""
    names = [text.partition(":")[0] for text in _texts(experiment) if _CODE.fullmatch(text)]
    for folder in map(Path, search_path):
        if any(_is_in(folder, name) for name in names):
            return f"cd {shlex.quote(str(folder))} && "
    return ""


def _is_in(folder: Path, name: str) -> bool:
    """Whether `module`, `package.module.Class` or `file.py` is a file of the folder."""
    parts = name.split(".")
    ways = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    files = [name, *(f"{way}{end}" for way in ways for end in (".py", "/__init__.py"))]
    return any(file.endswith(".py") and (folder / file).is_file() for file in files)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
