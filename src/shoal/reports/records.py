"""What a sweep writes down, and reads back without Ray.

```
RESULTS/NAME/sweep_1a2b3_2026-11-16_21-30-05/
  sweep.json     the Sweep, its search path and shoal's version, written once; sweep.yaml is the same for people
  trials.json    a TrialRecord of every trial, in order of their number, replaced as a whole whenever one changes
  trials/00003/  the ordinary run folder of trial 3; of a user's function: result.json, one JSON object per line, and in
                 log.txt what it printed; .trial.json: what it began with, .done: how it ended, error.txt: why it failed
  log.txt        one line per event; ray.log: what Ray itself had to say
  outcome.json   how the sweep ended, if it did
  ray/           Ray Tune's own state, from which an interrupted sweep goes on; with `seeds_together` in it all seeds
                 of a configuration are one trial of Ray Tune's
  best.yml       the experiment of the best trial, for `shoal train -f`
  index.html     the page
```
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.data.results import is_number, numbers, plain_json
from shoal.errors import CheckpointError
from shoal.runs.atomic_files import replace_file
from shoal.runs.bounded_files import bounded_bytes, bounded_json, bounded_lines, reading, small_json
from shoal.runs.folders import RESULTS_FILE
from shoal.runs.folders import SWEEP_FILE as SWEEP_FILE
from shoal.runs.outcomes import OUTCOME_FILE as OUTCOME_FILE
from shoal.runs.trust import FILE_LIMIT, marked
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.config.sweep import Sweep
    from shoal.envs.importing import UserCode

TRIALS_FILE, TRIALS_LIMIT = "trials.json", 1 << 28
BEGINNING_FILE = ".trial.json"
DONE_FILE = ".done"
FAILURE_FILE = ".failed"
ERROR_FILE = "error.txt"

Status = Literal["waiting", "running", "paused", "finished", "stopped early", "failed", "interrupted"]


@dataclass(frozen=True)
class Exploit:
    """When a trial of a population took over another's weights, optimiser, filter and task, and changed settings."""

    training_iteration: int
    timesteps_total: int
    source: int
    """The number of the trial it took over."""
    settings: dict[str, Any]
    """Its settings from then on."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial: what it tries, how far it is, how it ended."""

    index: int
    group: int
    """Trials that differ in nothing but the seed are of one group."""
    settings: dict[str, Any]
    """Path to value of what the search chose; those of a population as they are now."""
    seed: int | None = None
    status: Status = "waiting"
    reason: str = ""
    """Why it ended, in a sentence, e.g. `timesteps_total 50000 >= 50000`."""
    folder: str = ""
    """Relative to the sweep's folder, e.g. `trials/00003`."""
    exploits: tuple[Exploit, ...] = ()
    last_result: dict[str, float] = field(default_factory=dict)
    """The numbers of its last result, nested names as `a/b`."""
    first_settings: dict[str, Any] = field(default_factory=dict)
    """What it began with, by which an interrupted sweep finds it again: a population's settings change."""


@dataclass(frozen=True)
class Event:
    """Something that the user may want to see: a line of the log, and the trial as it is after it."""

    kind: Literal["started", "result", "paused", "exploited", "stopped early", "finished", "failed", "note"]
    sentence: str
    record: TrialRecord | None = None

    def __str__(self) -> str:
        return self.sentence


ENDED: tuple[Status, ...] = ("finished", "stopped early", "failed")


def write_sweep(folder: Path, sweep: Sweep, user_code: UserCode, function: str | None) -> None:
    """Write down what the sweep is; `function` names the user's own, which nobody can read back from a file."""
    from shoal.config.sweep import sweep_tree, sweep_yaml

    tree = plain_json(sweep_tree(sweep))
    about = {"shoal": __version__, "search_path": list(user_code.folders), "function": function, "sweep": tree}
    about = marked(about, folder)  # whose trials Ray Tune keeps as pickles, so it is the user's own at its place only
    replace_file(folder / "sweep.yaml", sweep_yaml(sweep).encode())
    replace_file(folder / SWEEP_FILE, json.dumps(about, indent=1).encode())


def read_about(folder: Path) -> dict[str, Any]:
    """All that `write_sweep` has written, as it stands in the file."""
    try:
        about = bounded_json(bounded_bytes(folder / SWEEP_FILE, FILE_LIMIT), SWEEP_FILE)
        return {**about, "sweep": dict(about["sweep"])}
    except (CheckpointError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder / SWEEP_FILE} cannot be read: {error}; is this the folder of a sweep?"
        ) from None


def read_sweep(folder: Path) -> Sweep:
    """The sweep that a folder is of."""
    from shoal.config.sweep import sweep_of

    return sweep_of(read_about(folder)["sweep"])


def write_trials(folder: Path, records: Sequence[TrialRecord]) -> None:
    """Put these in the place of all records."""
    content = json.dumps(plain_json([asdict(record) for record in records])).encode()
    replace_file(folder / TRIALS_FILE, content)


def read_trials(folder: Path) -> list[TrialRecord]:
    """The records of all trials, in order of their number; none if there are none yet."""
    path = folder / TRIALS_FILE
    if not path.exists():
        return []
    try:
        return [_record(tree) for tree in bounded_json(bounded_bytes(path, TRIALS_LIMIT), TRIALS_FILE)]
    except (CheckpointError, OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from None


def _record(tree: Mapping[str, Any]) -> TrialRecord:
    """The record of a tree; what a later version wrote beside is left."""
    known = {each.name for each in fields(TrialRecord)}
    exploits = tuple(Exploit(**exploit) for exploit in tree.get("exploits", ()))
    return TrialRecord(**{key: value for key, value in tree.items() if key in known} | {"exploits": exploits})


def read_results(folder: Path, record: TrialRecord) -> list[dict[str, Any]]:
    """All results of a trial, in the order of time."""
    return results_of(folder / record.folder)


def results_of(trial_folder: Path) -> list[dict[str, Any]]:
    """All results in the folder of a trial; a line that was cut short is left."""
    return [result for result in _lines_of(trial_folder) if result is not None]


def results_and_unreadable(run_folder: Path) -> tuple[list[dict[str, Any]], int]:
    """All results of a run that name their iteration, and the number of lines that are no such result."""
    lines = _lines_of(run_folder)
    results = [result for result in lines if result is not None and is_number(result.get("training_iteration"))]
    return results, len(lines) - len(results)


def _lines_of(folder: Path) -> list[dict[str, Any] | None]:
    """The results in a folder in order, None in the place of what is none."""
    found: list[dict[str, Any] | None] = []
    with suppress(FileNotFoundError), reading(folder / RESULTS_FILE) as file:
        for line in bounded_lines(file):
            entry = None
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
            found.append(entry if isinstance(entry, dict) else None)
    return found


def new_record(number: int, group: int, settings: dict[str, Any], seed: int | None) -> TrialRecord:
    """The record of a trial that has not begun."""
    return TrialRecord(number, group, settings, seed, folder=trial_folder(number), first_settings=settings)


def trial_folder(number: int) -> str:
    """Where a trial is, relative to its sweep."""
    return f"trials/{number:05d}"


def write_beginning(folder: Path, settings: Mapping[str, Any], seed: int | None) -> None:
    """Write into a trial's folder what it tries, before it does anything, if it was not written before."""
    if not (folder / BEGINNING_FILE).exists():
        content = json.dumps({"settings": plain_json(settings), "seed": seed}).encode()
        replace_file(folder / BEGINNING_FILE, content)


def write_done(folder: Path, status: Status, reason: str) -> None:
    """Write into a trial's folder that it has ended, before anybody is told."""
    replace_file(folder / DONE_FILE, json.dumps({"status": status, "reason": reason}).encode())


def read_done(folder: Path) -> tuple[Status, str] | None:
    """How the trial of a folder has ended; None if it has not."""
    try:
        told = small_json(folder / DONE_FILE)
        return told["status"], str(told["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Failure:
    """Why a trial failed; `is_everyones`: because of what the user said of the whole sweep."""

    life: str
    """Which life of the sweep it was in: an interrupted sweep tries again when it goes on."""
    sentence: str
    is_everyones: bool = False


def recovered_trials(folder: Path) -> list[TrialRecord]:
    """All records, with what the trials' own folders know better: a driver that was killed had no time to write."""
    found = {record.index: record for record in read_trials(folder)}
    for place in folder.glob("trials/*"):
        if place.name.isdecimal() and int(place.name) not in found:
            with suppress(OSError, ValueError):
                begun = small_json(place / BEGINNING_FILE)
                record = new_record(int(place.name), 0, begun["settings"], begun["seed"])
                found[record.index] = replace(record, status="interrupted")
    return [_reconciled(folder, found[number]) for number in sorted(found)]


def _reconciled(folder: Path, record: TrialRecord) -> TrialRecord:
    """The record of a trial whose end was not written."""
    done = read_done(folder / record.folder)
    if done is None or record.status in ("finished", "stopped early"):
        return record
    last = dict(record.last_result)
    for result in read_results(folder, record):
        last |= numbers(result)
    return replace(record, status=done[0], reason=done[1], last_result=last)


def write_failure(folder: Path, failure: Failure, trace: str) -> None:
    """Write into a trial's folder why it failed, for people with the whole story."""
    replace_file(folder / ERROR_FILE, f"{failure.sentence}\n\n{trace}".encode())
    replace_file(folder / FAILURE_FILE, json.dumps(asdict(failure)).encode())


def read_failure(folder: Path, life: str) -> Failure | None:
    """Why a trial failed in this life of its sweep; None if it did not."""
    try:
        failure = Failure(**small_json(folder / FAILURE_FILE))
    except (OSError, ValueError, TypeError):
        return None
    return failure if failure.life == life else None


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's."""
    return (folder / SWEEP_FILE).is_file()


def begun_at(folder: Path) -> float:
    """When a sweep began, in seconds since 1970: its folder's name tells, and where it was renamed the first file."""
    with suppress(ValueError):
        return time.mktime(time.strptime(folder.name[-19:], "%Y-%m-%d_%H-%M-%S"))
    return (folder / SWEEP_FILE).stat().st_mtime


def sweeps_of(parent: Path) -> list[Path]:
    """The sweeps in an experiment's folder, newest first."""
    found = [child for child in parent.iterdir() if is_sweep(child)] if parent.is_dir() else []
    return sorted(found, key=lambda folder: (folder.name[-19:], os.stat(folder / SWEEP_FILE).st_mtime_ns), reverse=True)
