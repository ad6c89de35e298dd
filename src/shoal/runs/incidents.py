"""Failures of environments as a run keeps them: `incidents.jsonl`, one line each, with all that a replay needs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.batch import Incident
from shoal.errors import ConfigError
from shoal.machine.redaction import redacted
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import open_regular

FILE = "incidents.jsonl"
MOST_KEPT = 100_000  # incidents of a run: of more, nobody reads the last
MOST_BYTES = 16_384  # of a traceback or of what a process printed
LIMIT = 1 << 30
"""The most bytes of the file that are read: of a longer one, which shoal has not written, those at its beginning."""
LINE_LIMIT = 1 << 26


def append_incidents(folder: Path, incidents: Iterable[Incident], known: int, **where: int) -> None:
    """Write incidents down after the `known` ones that the run has had; `where` is what it was at."""
    lines = []
    for number, incident in enumerate(incidents, known + 1):
        if number <= MOST_KEPT:
            entry = {"number": number, **where, **as_json(incident)}
            entry["host"] = entry["host"] or socket.gethostname()
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    if not lines:
        return
    # One write at the end of the file: a killed run leaves whole lines.
    with open(folder / FILE, "ab") as file:
        file.write("".join(lines).encode(errors="replace"))


def forget_after(folder: Path, iteration: int) -> None:
    """Forget what happened after the iteration that a run resumes from: it happens again."""
    found = read_incidents(folder)
    kept = [entry for entry in found if entry.get("training_iteration", 0) <= iteration]
    if len(kept) < len(found):
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in kept]
        replace_file(folder / FILE, "".join(lines).encode(errors="replace"))


def as_json(incident: Incident) -> dict[str, Any]:
    """An incident in JSON's types; values of the user's own that JSON does not know are text."""
    found: dict[str, Any] = {}
    for field in fields(Incident):
        value = getattr(incident, field.name)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if field.name in ("traceback", "output", "cause"):
            value = redacted(value)[-MOST_BYTES:]
        found[field.name] = value
    plain: dict[str, Any] = json.loads(json.dumps(found, default=_plain))
    return plain


def read_incidents(folder: Path) -> list[dict[str, Any]]:
    """What a run has written down, in order; a line that is not whole is left out."""
    found: list[dict[str, Any]] = []
    for line in _lines(folder / FILE):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and "number" in entry and "cause" in entry:
            found.append(entry)
        if len(found) == MOST_KEPT:
            break
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that anybody may have written, one at a time, and none through a link or from a device."""
    try:
        with open_regular(path) as file:
            left = LIMIT
            while left > 0 and (line := file.readline(min(left, LINE_LIMIT))):
                left -= len(line)
                yield line
    except OSError:
        return


def incident_of(folder: Path, number: int) -> dict[str, Any]:
    """One incident of a run."""
    found = read_incidents(folder)
    for entry in found:
        if entry["number"] == number:
            return entry
    if not found:
        raise ConfigError(f"{folder}: no environment of this run has failed, so there is nothing to replay")
    raise ConfigError(
        f"{folder}: there is no incident {number}; they are {found[0]['number']} to {found[-1]['number']}, see "
        f"`shoal incidents {os.path.relpath(folder)}`"
    )


def exit_text(entry: Mapping[str, Any]) -> str:
    """How an environment's process ended, in a word or two; empty if it did not."""
    code = entry.get("exit_code")
    if code is None:
        return ""
    if code < 0:
        import signal

        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return str(value)
