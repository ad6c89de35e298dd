"""What a run writes down: `progress.csv`, `result.json`, TensorBoard events."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.data.results import flat, numbers, plain_json
from shoal.runs.appended_file import AppendedFile
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import MOST_RESULTS_BYTES, bounded_bytes
from shoal.runs.folders import RESULTS_FILE
from shoal.runs.tensorboard import event_file_name, opening, scalars

logger = logging.getLogger("shoal.reporters")


class Reporters:
    """Every record of a run, cut back to the iteration it resumes from; a full disk delays rows but loses none."""

    def __init__(self, folder: Path, iteration: int, timesteps: int) -> None:
        self._reporters = (
            ResultJson(folder / RESULTS_FILE, iteration),
            ProgressCsv(folder / "progress.csv", iteration),
            TensorBoardEvents(folder, timesteps),
        )
        self._complained = False

    def report(self, result: Mapping[str, Any]) -> None:
        """Write one iteration to all of them."""
        for reporter in self._reporters:
            try:
                reporter.report(result)
            except OSError as error:
                if not self._complained:
                    logger.warning("%s cannot be written (%s); training continues.", reporter.path, error.strerror)
                self._complained = True

    def follow(self, folder: Path) -> None:
        """Go with the folder, which was moved."""
        for reporter in self._reporters:
            reporter.path = folder / reporter.path.name

    def close(self) -> None:
        """Close the files; what could not be written before is tried once more, and told if it is lost."""
        for reporter in self._reporters:
            try:
                reporter.catch_up()
            except OSError as error:
                words = "The last rows of %s are lost (%s); no checkpoint is affected."
                logger.warning(words, reporter.path, error.strerror)
            reporter.close()


class ResultJson:
    """One JSON object per line and iteration, with null where a number is not finite."""

    def __init__(self, path: Path, iteration: int) -> None:
        self.path = path
        if path.exists():
            old = bounded_bytes(path.resolve(), MOST_RESULTS_BYTES)
            kept = b"".join(line for line in old.splitlines(keepends=True) if _is_kept(line, iteration))
            if kept != old:
                replace_file(path, kept)
        self._file = AppendedFile(path)

    def report(self, result: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.append(json.dumps(plain_json(result), allow_nan=False, ensure_ascii=False).encode() + b"\n")

    def catch_up(self) -> None:
        """Write what waits."""
        self._file.append(b"")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_kept(line: bytes, iteration: int) -> bool:
    """Whether the line is whole and not after the iteration that the run resumes from."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["training_iteration"]) <= iteration
    except (ValueError, TypeError, KeyError):
        return False


class ProgressCsv:
    """One row per iteration, nested names as `a/b`; a name that appears later gets a column in all rows."""

    def __init__(self, path: Path, iteration: int) -> None:
        self.path = path
        self._columns: list[str] = []
        self._waiting: list[dict[str, str]] = []  # rows that a full disk has not taken, and whose columns it may lack
        if path.exists():
            self._cut_back(iteration)
        self._file = AppendedFile(path)

    def report(self, result: Mapping[str, Any]) -> None:
        """Append one row."""
        self._waiting.append({name: _cell(value) for name, value in flat(result).items()})
        self.catch_up()

    def catch_up(self) -> None:
        """Write what waits."""
        while self._waiting:
            row = self._waiting[0]
            if new := [name for name in row if name not in self._columns]:
                self._widen(new)
            del self._waiting[0]  # from here on the file keeps it
            self._file.append(_csv([[row.get(name, "") for name in self._columns]]))
        self._file.append(b"")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cut_back(self, iteration: int) -> None:
        old = bounded_bytes(self.path.resolve(), MOST_RESULTS_BYTES).decode(errors="replace")
        rows = [row for row in csv.reader(io.StringIO(old, newline="")) if row]
        columns = rows[0] if rows and "training_iteration" in rows[0] else []
        at = columns.index("training_iteration") if columns else 0
        whole = old.endswith("\n")
        kept = [
            row
            for number, row in enumerate(rows[1:], start=2)
            if len(row) == len(columns)
            and row[at].isdigit()
            and int(row[at]) <= iteration
            and (whole or number < len(rows))
        ]
        if not kept:
            columns = []
        self._columns = columns
        fresh = _csv([columns, *kept]) if columns else b""
        if fresh != old.encode():
            replace_file(self.path, fresh)

    def _widen(self, new: list[str]) -> None:
        if not self._columns:
            self._columns = new
            self._file.append(_csv([new]))
            return
        self._file.append(b"")  # what waits must be in the file before it is read
        wider = [*self._columns, *new]
        with open(self.path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        # A row may be as wide already, if only the opening below has failed before.
        replace_file(self.path, _csv([wider, *([*row, *([""] * (len(wider) - len(row)))] for row in rows[1:])]))
        widened = AppendedFile(self.path)
        self._file.close()
        self._file, self._columns = widened, wider


def _csv(rows: list[list[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


class TensorBoardEvents:
    """TensorBoard's numbers under `shoal/`, against `timesteps_total`, in one file per process."""

    def __init__(self, folder: Path, timesteps: int) -> None:
        self.path = folder / event_file_name()
        self._file = AppendedFile(self.path)
        # Events at exactly `timesteps` are still true, those after it happen again.
        self._file.append(opening(timesteps + 1))

    def report(self, result: Mapping[str, Any]) -> None:
        """Append the iteration's numbers."""
        values = {f"shoal/{name}": value for name, value in numbers(result).items()}
        self._file.append(scalars(int(result.get("timesteps_total", 0)), values))

    def catch_up(self) -> None:
        """Write what waits."""
        self._file.append(b"")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
