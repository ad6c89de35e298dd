"""A run whose folder is on NFS that goes stale: every call of the C library that is made of it fails with ESTALE."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the shim is for glibc, and needs a C compiler")
    made = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", made, HERE / "failing_calls.c", "-ldl", "-lpthread"], check=True
    )
    return made


def trained(shim: Path, tmp_path: Path, how: str) -> tuple[dict[str, Any], str]:
    """What was found, and the command's last words."""
    place, told = tmp_path / "results", tmp_path / "found.json"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, HERE / "train_on_stale_folder.py", place, how, told],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(told.read_text()), done.stdout


def test_training_goes_on_and_saves_again_when_the_folder_is_back(shim: Path, tmp_path: Path) -> None:
    found, words = trained(shim, tmp_path, "comes back")
    assert found["trained"] == list(range(1, 13))
    assert found["is_the_old_one_intact"]
    assert found["checkpoints"] == [12, 11, 10, 9, 3, 2, 1]
    assert found["rows"] == list(range(1, 13))
    assert (found["links"], found["problems"]) == (list(range(1, 13)), [])
    assert not found["left"]
    of_saving = [line for line in found["told"] if "checkpoint" in line]
    assert len(of_saving) == 1, found["told"]
    assert "could not be written: Stale file handle; earlier checkpoints are intact" in of_saving[0]
    assert "Training continues, and every save is tried" in of_saving[0]
    assert len(found["told"]) == len(set(found["told"])) <= 3, found["told"]  # and one of each record
    assert "saved     checkpoint_000012" in words


def test_a_run_that_ends_meanwhile_says_so_and_goes_on_from_the_old_checkpoint(shim: Path, tmp_path: Path) -> None:
    found, words = trained(shim, tmp_path, "stays away")
    assert found["trained"] == list(range(1, 13))
    assert "checkpoint_000012 could not be written: Stale file handle" in found["error"]
    assert "Failed; the error follows below." in words
    assert ", which cannot be read now: Stale file handle" in words
    assert found["is_the_old_one_intact"]
    assert found["checkpoints"] == [3, 2, 1]
    assert found["again"] == list(range(4, 13))
    assert found["rows"] == list(range(1, 13))


@pytest.mark.parametrize(
    "words",
    [
        ("train", "CartPole-v1", "--name", "one", "--results-dir", "{place}"),
        ("resume", "{run}"),
        ("runs", "{place}"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_whose_folder_is_away_ends_with_a_sentence(
    shim: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = tmp_path / "one" / "PPO_CartPole-v1_1a2b3_2026-11-15_21-30-05"
    run.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *(word.format(place=tmp_path, run=run) for word in words)],
        env={**os.environ, "LD_PRELOAD": str(shim), "STALE_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith(f"Error: {tmp_path}")
    assert done.stderr.endswith("cannot be reached: Stale file handle; is its file system there?\n")
    assert done.returncode == 1
