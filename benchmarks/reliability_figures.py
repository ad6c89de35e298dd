"""What a part of the reliability benchmark comes to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from record import Bar


@dataclass(frozen=True)
class Found:
    """A figure, how often it was tried, and what it is held against."""

    count: int
    figure: str
    bars: Sequence[Bar]
    more: dict[str, Any] = field(default_factory=dict)


def none_of(what: str, number: int) -> Bar:
    """The bar of what must not happen."""
    return Bar(what, number, 0, at_least=False)


def all_of(what: str, number: int, count: int) -> Bar:
    """The bar of what must happen each time."""
    return Bar(what, number, count, at_least=True)


def digest_of(files: Iterable[Path]) -> str:
    """What stands for the contents of files."""
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


class Pieces:
    """What was found piece by piece, in a file, so that a part which takes hours goes on where it was stopped.

    Pieces of other sources than today's do not count.
    """

    def __init__(self, file: Path, sources: Iterable[Path]) -> None:
        self._file, self._sources = file, digest_of(sources)
        self.found: dict[str, Any] = {}
        for line in file.read_text().splitlines() if file.exists() else []:
            piece = json.loads(line)
            if piece["sources"] == self._sources:
                self.found[piece["name"]] = piece["found"]

    def keep(self, name: str, found: Any) -> None:
        """Write down what came of a piece."""
        self.found[name] = found
        with self._file.open("a") as file:
            file.write(json.dumps({"sources": self._sources, "name": name, "found": found}) + "\n")
