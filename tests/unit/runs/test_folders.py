"""Names of runs, and finding them again."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from shoal.data.state import State
from shoal.errors import ConfigError
from shoal.runs.checkpoints import write_checkpoint
from shoal.runs.folders import (
    EXPERIMENT_FILE,
    STARTED_FILE,
    env_label,
    find_run,
    make_run_folder,
    results_folder,
    runs_of,
)


def test_variables_and_home_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/zoë b")
    assert results_folder("$SCRATCH/a b", "n") == tmp_path / "a b" / "n"
    assert results_folder("${SCRATCH}", "ä ö") == tmp_path / "ä ö"
    assert results_folder("~/x", "n") == Path("/home/zoë b/x/n")


@pytest.mark.parametrize(
    ("results_dir", "name", "message"),
    [
        ("$NO_SUCH_VAR/x", "n", r"\$NO_SUCH_VAR is not set"),
        ("/x/${NO_SUCH_VAR}", "n", r"\$\{NO_SUCH_VAR\} is not set"),
        ("~no_such_user_here/x", "n", "no home folder"),
        ("/tmp", "a/b", "name of a folder"),
        ("/tmp", "..", "name of a folder"),
        ("/tmp", "", "name of a folder"),
    ],
)
def test_what_cannot_be_a_place(results_dir: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        results_folder(results_dir, name)


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("custom_env.CustomEnv", "custom_env.CustomEnv"),
        ("/home/me/my env.py:MyEnv", "my-env.MyEnv"),
        ("../my_env.py:MyEnv", "my_env.MyEnv"),
        ("my_module:MyEnv", "my_module.MyEnv"),
        (Path, "Path"),
        (lambda _: None, "lambda"),
        ("../..", "env"),
        ("Ünï", "Ünï"),
    ],
)
def test_env_labels(env: object, label: str) -> None:
    assert env_label(env) == label


def test_run_folders_are_new_and_dated(tmp_path: Path) -> None:
    made = {make_run_folder(tmp_path / "a b", "PPO", "CartPole-v1") for _ in range(50)}
    assert len(made) == 50
    pattern = r"PPO_CartPole-v1_[0-9a-f]{5}_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
    assert all(re.fullmatch(pattern, folder.name) for folder in made)
    assert all([file.name for file in folder.iterdir()] == [STARTED_FILE] for folder in made)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: Not a directory; set another folder with --results-dir"):
        make_run_folder(tmp_path / "file" / "x", "PPO", "E")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        make_run_folder(tmp_path / "x", "PPO", "E")


def run_folder(parent: Path, date: str) -> Path:
    folder = parent / f"PPO_E_00000_{date}"
    folder.mkdir(parents=True)
    (folder / EXPERIMENT_FILE).write_text("{}")
    return folder


def test_every_way_to_name_a_run(tmp_path: Path) -> None:
    old = run_folder(tmp_path / "name", "2026-01-01_00-00-00")
    new = run_folder(tmp_path / "name", "2026-01-02_00-00-00")
    os.utime(old / EXPERIMENT_FILE)
    (tmp_path / "name" / "PPO_E_00001_2027-01-01_00-00-00").mkdir()
    assert runs_of(tmp_path / "name") == [new, old]
    checkpoint = write_checkpoint(old, State(), {}, {"training_iteration": 10})
    for text in (old, f"{old}/", checkpoint, checkpoint / "checkpoint-10", checkpoint / "state.json"):
        assert find_run(text) == old
    assert find_run(tmp_path / "name") == new


def test_a_trainers_own_folder_is_a_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "mine", State(), {}, {"training_iteration": 10})
    assert find_run(tmp_path / "mine") == tmp_path / "mine"


@pytest.mark.parametrize(("path", "message"), [("nowhere", "there is no run"), (".", "is not a run and contains none")])
def test_no_run(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_run(tmp_path / path)


def test_the_newest_run_is_the_last_started_whatever_clock_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for zone in ("Asia/Tokyo", "America/Los_Angeles"):  # the second is started later, and its date is hours before
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        made.append(make_run_folder(tmp_path, "PPO", "CartPole-v1"))
        (made[-1] / EXPERIMENT_FILE).write_text("{}")
    os.utime(made[0] / EXPERIMENT_FILE)  # which is written again when a run is resumed
    assert made[0].name[-19:] > made[1].name[-19:]
    assert runs_of(tmp_path) == [made[1], made[0]]
    for folder in made:
        (folder / STARTED_FILE).unlink()
    assert runs_of(tmp_path) == made  # of an earlier version only the name tells
    monkeypatch.undo()
    time.tzset()
