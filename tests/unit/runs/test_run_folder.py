"""What a run keeps on disk, without a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.config.experiment import Experiment, experiment_from
from shoal.data.state import State
from shoal.envs.importing import UserCode
from shoal.errors import ShoalError
from shoal.runs.checkpoints import checkpoints_of, read_checkpoint
from shoal.runs.lease import holder
from shoal.runs.resuming import unsaved_iterations
from shoal.runs.run_folder import RunFolder


def summary(iteration: int) -> dict[str, float]:
    return {"training_iteration": iteration}


@pytest.fixture
def kept(tmp_path: Path) -> RunFolder:
    keys = {"name": "one", "env": "CartPole-v1", "checkpoint_freq": 2, "keep_checkpoints_num": 2}
    return RunFolder(tmp_path, experiment_from(keys), UserCode.at(tmp_path))


def test_it_has_one_writer_and_says_what_is_run(kept: RunFolder) -> None:
    with kept.held():
        assert holder(kept.path) is not None
        with pytest.raises(ShoalError, match="is being written by"), RunFolder(*made_of(kept)).held():
            pass
    assert holder(kept.path) is None
    tree = json.loads((kept.path / "experiment.json").read_text())
    assert (tree["name"], tree["search_path"]) == ("one", [str(kept.path)])


def made_of(kept: RunFolder) -> tuple[Path, Experiment, UserCode]:
    return kept.path, kept._experiment, kept._user_code


def test_an_iteration_is_saved_once_and_told_once(kept: RunFolder) -> None:
    told: list[str] = []
    kept.on_checkpoint = lambda path: told.append(path.name)
    with kept.held():
        assert kept.begin() is None
        for iteration in (1, 2, 3):
            kept.note(summary(iteration), State({"iteration": iteration}))
            kept.save_if_due()
        assert told == ["checkpoint_000002"]
        kept.write()  # as from another thread, which calls no hook
        assert told == ["checkpoint_000002"]
        kept.save()
        kept.save()
    assert told == ["checkpoint_000002", "checkpoint_000003"]
    assert kept.newest == checkpoints_of(kept.path)[0]


def test_nothing_is_written_unless_it_is_held(kept: RunFolder) -> None:
    kept.note(summary(1), State({}))
    kept.save()
    assert not checkpoints_of(kept.path)


def test_another_state_takes_the_place_of_a_checkpoint(kept: RunFolder) -> None:
    with kept.held():
        kept.note(summary(4), State({"agent": "own"}))
        kept.save()
    with kept.held():
        start = kept.begin()
        assert start is not None
        kept.replace(start, State({"agent": "taken over"}))
        kept.save()
        assert kept.saved_iteration == 4
    (only,) = checkpoints_of(kept.path)
    assert read_checkpoint(only).state.values == {"agent": "taken over"}


def test_what_a_killed_run_has_lost_is_counted(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint_000010"
    assert unsaved_iterations(saved) == 0, "there are no results"
    rows = [json.dumps({"training_iteration": number, "note": "n" * 100_000}) for number in range(1, 14)]
    (tmp_path / "result.json").write_text("\n".join(rows) + '\n{"training_iteration": 99')
    assert unsaved_iterations(saved) == 3
    assert unsaved_iterations(tmp_path / "checkpoint_000013") == 0
    assert unsaved_iterations(tmp_path / "checkpoint_000020") == 0
