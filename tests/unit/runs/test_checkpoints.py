"""Checkpoints: what goes in comes out, and every way to name one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import newest_good, prune, read_checkpoint, write_checkpoint


def write(folder: Path, iteration: int, **values: object) -> Path:
    return write_checkpoint(folder, State(dict(values)), {"run": "PPO"}, {"training_iteration": iteration})


def test_everything_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = State(
        {
            "rng": rng.bit_generator.state,
            "big": 2**130,
            "tiny": 5e-324,
            "none": None,
            "text": "çà",
            "list": [1, [2.5, True]],
        },
        {
            "transposed": np.arange(6, dtype=np.uint64).reshape(2, 3).T,
            "scalar": np.array(1.5),
            "empty": np.zeros((0, 4), np.float32),
            "strided": np.arange(10)[::3],
            "half": np.ones(3, np.float16),
            "bools": np.array([True, False]),
            "bytes": np.arange(4, dtype=np.uint8),
        },
    )
    back = read_checkpoint(
        write_checkpoint(tmp_path, state, {"env": "X"}, {"training_iteration": 10, "episode_reward_mean": 1.25})
    )
    assert back.path == tmp_path / "checkpoint_000010"
    assert back.state.values == state.values
    assert back.experiment_tree == {"env": "X"}
    assert back.summary == {"training_iteration": 10, "episode_reward_mean": 1.25}
    assert set(back.state.arrays) == set(state.arrays)
    for name, array in state.arrays.items():
        got = back.state.arrays[name]
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert np.array_equal(got, array)
        assert got.flags.writeable


@pytest.mark.parametrize(
    "state",
    [
        State({"loss": float("nan")}),
        State({"loss": float("inf")}),
        State({"env": object()}),
        State({}, {"x": np.array([None])}),
    ],
)
def test_what_cannot_come_back_is_refused(tmp_path: Path, state: State) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved"):
        write_checkpoint(tmp_path, state, {}, {"training_iteration": 1})
    assert not list(tmp_path.iterdir())


def test_the_same_name_again_replaces(tmp_path: Path) -> None:
    write(tmp_path, 5, turn=1)
    path = write(tmp_path, 5, turn=2)
    assert read_checkpoint(path).state.values == {"turn": 2}
    assert [child.name for child in tmp_path.iterdir()] == ["checkpoint_000005"]


@pytest.mark.parametrize("tail", ["", "checkpoint-10", "checkpoint10", "state.json", "manifest.json"])
def test_a_checkpoint_has_many_names(tmp_path: Path, tail: str) -> None:
    path = write(tmp_path, 10)
    assert read_checkpoint(str(path / tail)).path == path


def test_a_run_folder_means_its_newest(tmp_path: Path) -> None:
    for iteration in (9, 1_000_000, 999_999):
        write(tmp_path, iteration)
    assert read_checkpoint(tmp_path).summary["training_iteration"] == 1_000_000


def test_a_moved_and_renamed_checkpoint_is_still_one(tmp_path: Path) -> None:
    path = write(tmp_path, 10).rename(tmp_path / "my best one")
    assert read_checkpoint(path).path == path


@pytest.mark.parametrize("path", ["nowhere", "nowhere/checkpoint_000001", "", "nowhere/checkpoint_000001/checkpoint-1"])
def test_no_checkpoint_is_a_sentence(tmp_path: Path, path: str) -> None:
    with pytest.raises(CheckpointError, match="checkpoint_NNNNNN"):
        read_checkpoint(tmp_path / path)


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for iteration in range(1, 6):
        write(tmp_path, iteration)
    prune(tmp_path, None)
    assert len(checkpoints_of(tmp_path)) == 5
    prune(tmp_path, 2)
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint_000005", "checkpoint_000004"]
    prune(tmp_path, 0)
    assert len(list(tmp_path.iterdir())) == 1


def test_no_folder_holds_no_checkpoint(tmp_path: Path) -> None:
    assert newest_good(tmp_path / "nowhere") is None
