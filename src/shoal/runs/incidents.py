"""Failures of environments as a run keeps them: `incidents.jsonl`, one line each, with all that a replay needs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.batch import Incident
from shoal.envs.cases import Case
from shoal.errors import ConfigError
from shoal.machine.redaction import redacted
from shoal.runs.appended_file import AppendedFile
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import open_regular

FILE = "incidents.jsonl"
FIRST_OF_EVALUATION = 1_000_001
"""The number of the first failure in an evaluation: those of training are counted from 1, and never come so far."""
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
            lines.append(_line(number, incident, where))
    _append(folder, lines)


def append_of_evaluation(folder: Path, failed: Sequence[tuple[Incident, Case]], seed: int, **where: int) -> None:
    """Write down the incidents of an evaluation, with what makes its episodes others than those of training."""
    if not failed:
        return
    before = [entry["number"] for entry in read_incidents(folder) if "evaluation" in entry]
    lines = []
    for number, (incident, case) in enumerate(failed, max(before, default=FIRST_OF_EVALUATION - 1) + 1):
        if number < FIRST_OF_EVALUATION + MOST_KEPT:
            told = {"seed": seed, "case": None if case == Case() else asdict(case)}
            lines.append(_line(number, incident, {**where, "evaluation": told}))
    _append(folder, lines)


def _line(number: int, incident: Incident, where: Mapping[str, Any]) -> str:
    entry = {"number": number, **where, **as_json(incident)}
    entry["host"] = entry["host"] or socket.gethostname()
    return json.dumps(entry, ensure_ascii=False, default=_plain) + "\n"


def _append(folder: Path, lines: Sequence[str]) -> None:
    if not lines:
        return
    path = folder / FILE
    file = AppendedFile(path)  # which takes back what a full disk cuts off
    try:
        begin = b"\n" if _ends_in_a_line(path) else b""
        file.append(begin + "".join(lines).encode(errors="replace"))
    finally:
        file.close()


def _ends_in_a_line(path: Path) -> bool:
    """Whether a killed writer has left a piece of a line, with which the next would be lost too."""
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


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
                if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
                    return  # no line of ours, and what follows is none either
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
        f"{folder}: there is no incident {number}; `shoal incidents {os.path.relpath(folder)}` lists the numbers, of "
        f"which the last is {found[-1]['number']}"
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
