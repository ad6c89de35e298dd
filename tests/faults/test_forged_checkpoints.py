"""Checkpoints whose every byte is sealed by a right hash, and that shoal has never saved."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.data.state import State
from shoal.errors import CheckpointError, ConfigError, ShoalError
from shoal.runs import checkpoints
from shoal.runs.bounded_files import proof_of
from shoal.runs.checkpoint_folders import MANIFEST
from shoal.runs.checkpoints import Checkpoint, newest_good, read_checkpoint, write_checkpoint
from shoal.runs.resuming import experiment_of

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": [8]}}
ODD = (None, 5, -1, 1e300, "x", [], {}, [[]], True, [None] * 3, {"x": {"y": 1}}, 2**70, "../../etc/passwd")


@pytest.fixture(scope="module")
def trainer() -> Any:
    with shoal.PPO(env="CartPole-v1", config=SMALL) as made:
        made.train()
        yield made


@pytest.fixture(scope="module")
def origin(trainer: Any, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(trainer.save(tmp_path_factory.mktemp("origin")))


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree[:3]):
            found += places(value, (*path, key))
    return found


def mutated(tree: Any, choose: random.Random) -> tuple[Any, str]:
    """A copy with one value left out or replaced, and what was done."""
    tree = copy.deepcopy(tree)
    path = choose.choice(places(tree))
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    if choose.random() < 0.3:
        del parent[path[-1]]
        return tree, f"without {path}"
    parent[path[-1]] = copy.deepcopy(choose.choice(ODD))
    return tree, f"{path} = {parent[path[-1]]!r}"


def test_whatever_is_sealed_gives_a_sentence_or_a_policy(trainer: Any, origin: Checkpoint, tmp_path: Path) -> None:
    choose, refused = random.Random(17), 0
    for number in range(150):
        values, tree, arrays = origin.state.values, origin.experiment_tree, dict(origin.state.arrays)
        what = choose.choice(("values", "tree", "array"))
        if what == "values":
            values, told = mutated(values, choose)
        elif what == "tree":
            tree, told = mutated(tree, choose)
        else:
            name = choose.choice(sorted(arrays))
            array = arrays.pop(name)
            told = f"array {name}"
            if choose.random() < 0.7:
                arrays[name] = choose.choice((array[:-1], array.astype(np.int8), array.reshape(-1, 1), np.zeros(0)))
        path = write_checkpoint(tmp_path / str(number), State(values, arrays), tree, {"training_iteration": 1})
        for use in (shoal.Policy.load, trainer.restore):
            try:
                use(path)
            except ShoalError:
                refused += 1
            except Exception as error:
                pytest.fail(f"{told}: {use.__qualname__} raised {type(error).__name__}: {error}")
    trainer.restore(origin.path)
    assert refused > 80


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["policy/params", "learner/optimizer.m", "learner/rewards.unfinished"])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float, origin: Checkpoint, tmp_path: Path) -> None:
    arrays = {key: array.copy() for key, array in origin.state.arrays.items()}
    arrays[name][-1] = value
    write_checkpoint(tmp_path, origin.state, origin.experiment_tree, {"training_iteration": 1})
    path = write_checkpoint(
        tmp_path, State(origin.state.values, arrays), origin.experiment_tree, {"training_iteration": 2}
    )
    with pytest.raises(CheckpointError, match=f"{name} holds numbers that are not finite"):
        read_checkpoint(path)
    before = newest_good(tmp_path)
    assert before is not None
    assert before.summary["training_iteration"] == 1


@pytest.mark.parametrize("search_path", [5, "/tmp", [5], {"a": 1}, None])
def test_a_search_path_that_is_none_is_a_sentence(search_path: Any, origin: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="search_path must be a list of folders"):
        experiment_of({**origin.experiment_tree, "search_path": search_path}, trust=True)


def resealed(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest.pop("sha256")
    (path / MANIFEST).write_bytes(checkpoints._manifest_bytes({**manifest, **changes}))


SUMMARIES = [{}, {"training_iteration": "x"}, {"training_iteration": 1, "a": [1]}, {"training_iteration": 1, "a": "b"}]


@pytest.mark.parametrize("summary", SUMMARIES, ids=str)
def test_a_manifest_with_another_summary_is_refused(summary: Any, origin: Checkpoint, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, origin.state, origin.experiment_tree, {"training_iteration": 1})
    resealed(path, summary=summary)
    with pytest.raises(CheckpointError, match="is damaged"):
        read_checkpoint(path)


def test_a_manifest_cannot_name_files_elsewhere(origin: Checkpoint, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, origin.state, origin.experiment_tree, {"training_iteration": 1})
    files = json.loads((path / MANIFEST).read_bytes())["files"]
    for name in ("../state.json", "/etc/passwd"):
        resealed(path, files={**files, name: files["state.json"]})
        assert read_checkpoint(path).state.values == origin.state.values  # what nobody writes nobody opens
        renamed = {name if key == "state.json" else key: value for key, value in files.items()}
        resealed(path, files=renamed)
        with pytest.raises(CheckpointError, match=r"does not tell the size of state\.json"):
            read_checkpoint(path)
    resealed(path, files=files)
    (path / "state.json").rename(tmp_path / "state.json")
    (path / "state.json").symlink_to(tmp_path / "state.json")
    with pytest.raises(CheckpointError, match=r"state\.json cannot be read"):
        read_checkpoint(path)


BOUNDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
from shoal.errors import ShoalError
import shoal
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    shoal.Policy.load(sys.argv[1])
except ShoalError as error:
    print(error)
"""


def refused(path: Path) -> str:
    """The sentence of another process, which may use 30 s of a core and 3 GB."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1, done.stdout
    return done.stdout


def test_a_sparse_file_of_500_gb_is_not_read(origin: Checkpoint, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, origin.state, origin.experiment_tree, {"training_iteration": 1})
    os.truncate(path / "arrays.safetensors", 500 * 10**9)
    with pytest.raises(CheckpointError, match="its size differs"):
        read_checkpoint(path)
    files = json.loads((path / MANIFEST).read_bytes())["files"]
    files["arrays.safetensors"]["bytes"] = 500 * 10**9
    resealed(path, files=files)
    assert "has 500 GB, and only" in refused(path)


def with_state(origin: Checkpoint, folder: Path, content: bytes) -> Path:
    path = write_checkpoint(folder, origin.state, origin.experiment_tree, {"training_iteration": 1})
    (path / "state.json").write_bytes(content)
    files = json.loads((path / MANIFEST).read_bytes())["files"]
    resealed(path, files={**files, "state.json": proof_of(content)})
    return path


def test_states_of_many_values_or_levels_are_refused_soon(origin: Checkpoint, tmp_path: Path) -> None:
    path = with_state(origin, tmp_path / "wide", b'{"policy": [' + b"[]," * 30_000_000 + b"0]}")
    assert (path / "state.json").stat().st_size > 90e6
    assert "state.json has more than 8388608 values" in refused(path)
    path = with_state(origin, tmp_path / "deep", b'{"policy": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    assert "state.json cannot be parsed (it is nested too deeply)" in refused(path)
    with pytest.raises(CheckpointError, match="NaN is no number"):
        read_checkpoint(with_state(origin, tmp_path / "nan", b'{"policy": NaN}'))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": [1 << 40]}, "has more than 33554432 numbers"),
        ({"shape": [1 << 26]}, "has more than"),
        ({"low": [0] * 3}, "."),
        ({"dtype": "object"}, "."),
        ({"type": "Oval"}, "."),
    ],
    ids=str,
)
def test_spaces_that_cannot_be_are_refused(
    changes: dict[str, Any], said: str, origin: Checkpoint, tmp_path: Path
) -> None:
    values = copy.deepcopy(origin.state.values)
    values["spaces"][0].update(changes)
    state = State(values, origin.state.arrays)
    path = write_checkpoint(tmp_path, state, origin.experiment_tree, {"training_iteration": 1})
    with pytest.raises(ShoalError, match=said):
        shoal.Policy.load(path)


@pytest.mark.parametrize("hiddens", [[2**31 - 1], [2**31 - 1] * 3, [10**6, 10**6]], ids=str)
def test_a_network_that_cannot_fit_is_refused_by_arithmetic(
    hiddens: list[int], origin: Checkpoint, tmp_path: Path
) -> None:
    tree = copy.deepcopy(origin.experiment_tree)
    tree["config"]["model"]["fcnet_hiddens"] = hiddens
    path = write_checkpoint(tmp_path, origin.state, tree, {"training_iteration": 1})
    with pytest.raises(ConfigError, match=r"fcnet_hiddens: a network of [\d,]+ parameters takes .* of memory"):
        shoal.Policy.load(path)
