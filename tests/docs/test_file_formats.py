"""The page of file formats: its tables have what the code writes, by name, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import shoal
from shoal.data.batch import Incident
from shoal.reports import records
from shoal.reports.run_cache import CACHE_FILE, SETTINGS_CACHE_FILE
from shoal.reports.run_report import REPORT_FILE
from shoal.runs import bisecting, chain, checkpoints, folders, incidents, lease, lineage, loggers, outcomes, playing
from shoal.runs.checkpoint_folders import LIMITS, MANIFEST
from shoal.runs.lost_processes import MARKS_FILE
from shoal.runs.row_segments import ROWS_FOLDER

PAGE = (Path(__file__).parents[2] / "docs/file_formats.md").read_text()
CONFIG = {"num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}


def rows(title: str) -> Iterator[tuple[set[str], str]]:
    """The names in the first cell of each row below a title, and the last cell."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    for first, last in re.findall(r"^\| (`.*?) \|(?:.*\|)? (.*) \|$", section, re.MULTILINE):
        yield set(re.findall(r"`([^`]+)`", first)), last


def names(title: str) -> set[str]:
    return set().union(*(found for found, _ in rows(title)))


def meaning(title: str, name: str) -> str:
    (found,) = (last for names, last in rows(title) if name in names)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {"env": "CartPole-v1", "name": "one", "results_dir": str(tmp_path_factory.mktemp("results"))}
    list(shoal.run({**tree, "stop": {"training_iteration": 1}, "config": CONFIG}))
    (found,) = (Path(tree["results_dir"]) / "one").iterdir()
    return found


def test_a_run_has_the_files_of_the_page(run: Path) -> None:
    written = {re.sub(r"tfevents.*", "tfevents...", file.name) for file in run.iterdir() if file.is_file()}
    written |= {"checkpoint_000010/" for folder in run.glob("checkpoint_*")}
    others = {
        *(incidents.FILE, lineage.FORK_FILE, loggers.ID_FILE, playing.REPLAY_FILE, f"{bisecting.BISECT_FOLDER}/"),
        *("code/", "videos/", "evaluation_DATE.json", "evaluation_DATE.csv", "evaluation_DATE.parquet"),
        *(lease.LEASE, MARKS_FILE, outcomes.ROOM_FILE),
    }
    assert {chain.CHAIN_FILE, folders.EXPERIMENT_FILE, folders.RESULTS_FILE, outcomes.OUTCOME_FILE} <= written
    assert REPORT_FILE in written
    assert names("A run") == written | others
    outcome = json.loads((run / outcomes.OUTCOME_FILE).read_text())
    told = re.findall(r"`(kind|sentence|signal|iteration)`", meaning("A run", outcomes.OUTCOME_FILE))
    assert set(outcome) == set(told)


def test_a_checkpoint_has_the_files_of_the_page(run: Path) -> None:
    (checkpoint,) = run.glob("checkpoint_*")
    written = {file.name for file in checkpoint.iterdir()}
    assert written == {MANIFEST, *LIMITS}
    assert names("A checkpoint") == written | {f"{ROWS_FOLDER}/0-BEGIN-END.safetensors"}
    told = meaning("A checkpoint", MANIFEST)
    formats = (checkpoints.PLAIN_FORMAT, checkpoints.ROWS_FORMAT, checkpoints.FORMAT)
    assert "`format` ({}; with replay {}; with replay of images {})".format(*formats) in told
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    assert manifest["format"] == checkpoints.PLAIN_FORMAT
    assert all(f"`{key}`" in told for key in (*manifest, *manifest["files"]["state.json"]))


def test_an_incident_has_the_keys_of_the_page() -> None:
    where = {"number", "training_iteration", "timesteps_total", "evaluation"}
    assert names("Incidents") == where | {field.name for field in fields(Incident)}
    assert f"at most {incidents.MOST_KEPT:,}" in PAGE


def test_a_sweep_has_the_files_of_the_page() -> None:
    assert {records.SWEEP_FILE, records.TRIALS_FILE, outcomes.OUTCOME_FILE} <= names("A sweep")
    of_a_trial = (records.ERROR_FILE, records.BEGINNING_FILE, records.DONE_FILE, records.FAILURE_FILE)
    assert all(f"`{name}`" in meaning("A sweep", "trials/00003/") for name in of_a_trial)
    told = re.findall(r"`(\w+)`", meaning("A sweep", records.TRIALS_FILE))
    assert told == [field.name for field in fields(records.TrialRecord)]
    assert all(f"`{kind}`" in PAGE for kind in get_args(outcomes.OutcomeKind))


def test_the_caches_of_lists_are_named() -> None:
    assert {CACHE_FILE, SETTINGS_CACHE_FILE} <= names("Others")
