"""Whether a sweep's list of trials and the folders of its trials are of one another."""

from __future__ import annotations

from pathlib import Path

from shoal.data.findings import Finding
from shoal.data.number_text import counted
from shoal.errors import CheckpointError
from shoal.reports.records import BEGINNING_FILE, OUTCOME_FILE, TRIALS_FILE, TrialRecord, read_trials
from shoal.runs.folders import RESULTS_FILE, is_run

MOST_NAMED = 5


def checked_trials(folder: Path) -> Finding:
    """What is right and wrong with the list of a sweep's trials: what has begun has its folder, and is listed."""
    try:
        records = read_trials(folder)
    except CheckpointError as error:
        return Finding(TRIALS_FILE, "problem", str(error))
    places = {f"trials/{place.name}": place for place in (folder / "trials").glob("*") if place.name.isdecimal()}
    lost = _lost(records, places)
    listed = {record.folder for record in records}
    unlisted = sorted(name for name, place in places.items() if name not in listed and _is_trial(place))
    told = [*lost, f"{_named(unlisted)}: there, and not listed"] if unlisted else lost
    if not told:
        return Finding(TRIALS_FILE, "ok", f"{counted(len(records), 'trial')}, each in its place")
    # A driver that is killed, or still at work, has not written its last trials.
    is_harmless = not lost and not (folder / OUTCOME_FILE).exists()
    return Finding(TRIALS_FILE, "note" if is_harmless else "problem", "; ".join(told))


def _lost(records: list[TrialRecord], places: dict[str, Path]) -> list[str]:
    """What there was of trials that are listed, and is no more."""
    gone = [record.folder for record in records if _has_begun(record) and record.folder not in places]
    has_runs = any(map(is_run, places.values()))
    empty = [record.folder for record in records if has_runs and _is_emptied(record, places)]
    named = ((gone, "listed, and gone"), (empty, "finished, and no run any more"))
    return [f"{_named(names)}: {words}" for names, words in named if names]


def _has_begun(record: TrialRecord) -> bool:
    return record.status in ("finished", "stopped early") or bool(record.last_result)


def _is_emptied(record: TrialRecord, places: dict[str, Path]) -> bool:
    return record.status == "finished" and record.folder in places and not is_run(places[record.folder])


def _is_trial(place: Path) -> bool:
    return is_run(place) or (place / BEGINNING_FILE).exists() or (place / RESULTS_FILE).exists()


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
