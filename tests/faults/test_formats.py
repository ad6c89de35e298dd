"""Checkpoints of every format that shoal has ever written are read, and trained on, for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from same_training import arrays_of

import shoal
from shoal.data import frames
from shoal.errors import CheckpointError
from shoal.runs import checkpoints, row_segments
from shoal.runs.bounded_files import proof_of
from shoal.runs.checkpoint_folders import MANIFEST
from shoal.runs.checkpoints import FORMAT, read_checkpoint
from shoal.runs.resuming import experiment_of

HERE = Path(__file__).parent
KEPT = sorted(HERE.glob("checkpoints_of_format_*/*/checkpoint_*"))


def test_there_is_one_of_every_format() -> None:
    formats = {json.loads((path / MANIFEST).read_bytes())["format"] for path in KEPT}
    assert formats == {*range(1, FORMAT + 1)}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_it_is_read_and_trained_on(path: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(path)
    experiment, _ = experiment_of(checkpoint.experiment_tree, trust=True)
    if experiment.config.model.conv_filters:
        pytest.importorskip("torch")
    with getattr(shoal, experiment.run)(config=experiment.config) as trainer:
        trainer.restore(path)
        assert trainer.iteration == checkpoint.summary["training_iteration"]
        again = read_checkpoint(trainer.save(tmp_path))
        mine, theirs = arrays_of(checkpoint.state), arrays_of(again.state)
        for name, array in mine.items():
            if name.startswith(("policy/", "learner/")):
                np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        assert trainer.train()["training_iteration"] == trainer.iteration
    policy = shoal.Policy.load(path)
    policy.compute_single_action(np.zeros_like(policy.obs_spec.space.sample()))


def test_both_formats_hold_the_same_replay() -> None:
    old, new = (read_checkpoint(HERE / f"checkpoints_of_format_{number}/dqn").state for number in (1, 2))
    assert old.arrays.keys() == new.arrays.keys()
    for name in old.arrays:
        if "replay." in name:  # which chance, and not rounding, decides
            assert old.arrays[name].shape == new.arrays[name].shape
            assert old.arrays[name].dtype == new.arrays[name].dtype


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return Path(shutil.copytree(next((HERE / "checkpoints_of_format_2/dqn").iterdir()), tmp_path / "checkpoint_000003"))


def resealed(path: Path, **changes: object) -> None:
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest.pop("sha256")
    (path / MANIFEST).write_bytes(checkpoints._manifest_bytes({**manifest, **changes}))


RING = {"begin": 96, "end": 144, "rows": 96}
FILES = [f"replay/0-{begin:012d}-{end:012d}.safetensors" for begin, end in ((96, 112), (112, 128), (128, 144))]
SEGMENTS = [[96, 112, FILES[0]], [112, 128, FILES[1]], [128, 144, FILES[2]]]


@pytest.mark.parametrize(
    "changes",
    [
        {"begin": -1},
        {"begin": 0},
        {"end": 10**15},
        {"rows": 10},
        {"rows": "96"},
        {"begin": True},
        {"segments": SEGMENTS[:2]},
        {"segments": SEGMENTS[1:]},
        {"segments": [*SEGMENTS, [144, 160, FILES[0]]]},
        {"segments": [[96, 112, "../../secret.safetensors"], *SEGMENTS[1:]]},
        {"segments": [[96, 112, "replay/../state.json"], *SEGMENTS[1:]]},
        {"segments": [[96, 112, FILES[2]], SEGMENTS[1], [128, 144, FILES[0][:-1]]]},
        {"segments": [[96, 128, FILES[0]], [128, 144, FILES[2]]]},
        {"segments": [5]},
        {"segments": None},
    ],
    ids=str,
)
def test_forged_rings_are_refused(shared: Path, changes: dict[str, object]) -> None:
    whole = json.loads((shared / MANIFEST).read_bytes())["rings"]["learner/replay"]
    assert whole == {**RING, "segments": SEGMENTS}
    read_checkpoint(shared)
    resealed(shared, rings={"learner/replay": {**whole, **changes}})
    with pytest.raises(CheckpointError, match="is refused"):
        read_checkpoint(shared)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "swapped", "strange", "link"])
def test_damaged_segments_are_refused(shared: Path, how: str) -> None:
    first, second = (shared / name for name in FILES[:2])
    content = first.read_bytes()
    if how == "flipped":
        first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "cut":
        first.write_bytes(content[:-1])
    elif how == "missing":
        first.unlink()
    elif how == "swapped":
        first.write_bytes(second.read_bytes())
    elif how == "strange":
        (first.parent / "strange").write_bytes(content)
    else:
        first.rename(shared.parent / "elsewhere")
        first.symlink_to(shared.parent / "elsewhere")
    with pytest.raises(CheckpointError, match="is refused"):
        read_checkpoint(shared)


@pytest.mark.parametrize("how", ["none", "other", "fewer", "shorter", "wider"])
def test_well_sealed_segments_of_other_rows_are_refused(shared: Path, how: str) -> None:
    from safetensors.numpy import load_file, save

    found = load_file(shared / FILES[1])
    columns = {
        "none": {},
        "other": {"x": np.zeros(16)},
        "fewer": {"actions": found["actions"]},
        "shorter": {**found, "actions": found["actions"][:3]},
        "wider": {**found, "obs0": np.zeros((16, 5), np.float32)},
    }
    content = save(columns[how])
    (shared / FILES[1]).write_bytes(content)
    files = json.loads((shared / MANIFEST).read_bytes())["files"]
    resealed(shared, files={**files, FILES[1]: proof_of(content)})
    with pytest.raises(CheckpointError, match="has other rows than its manifest says"):
        read_checkpoint(shared)


def test_a_replay_that_memory_cannot_hold_is_a_sentence(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_segments, "available_memory", lambda: 1 << 30)
    (shared / FILES[0]).unlink()
    with open(shared / FILES[0], "wb") as file:
        file.truncate(1 << 40)
    files = json.loads((shared / MANIFEST).read_bytes())["files"]
    resealed(shared, files={**files, FILES[0]: {"bytes": 1 << 40, "sha256": "0" * 64}})
    with pytest.raises(CheckpointError, match="of memory are free"):
        read_checkpoint(shared)


@pytest.fixture
def of_images(tmp_path: Path) -> Path:
    return Path(shutil.copytree(next((HERE / "checkpoints_of_format_3/dqn").iterdir()), tmp_path / "checkpoint_000004"))


IMAGES = [f"replay/0-{begin:012d}-{end:012d}.safetensors" for begin, end in ((40, 48), (48, 64), (64, 72))]


@pytest.mark.parametrize(
    "frames",
    [
        None,
        5,
        [],
        {},
        {"frames0": []},
        {"frames0": "obs0"},
        {"frames0": ["obs0", 5]},
        {"frames0": ["obs0", "obs0"]},
        {"frames0": ["obs0"], "frames1": ["obs0"]},
        {"obs0": ["obs0"]},
        {"frames0": ["obs0", "other"]},
        {"frames0": ["obs0", "returns"]},
        {"obs0": ["next_obs0"]},
        {"other": ["obs0", "next_obs0"]},
    ],
    ids=str,
)
def test_forged_names_of_frames_are_refused(of_images: Path, frames: object) -> None:
    ring = json.loads((of_images / MANIFEST).read_bytes())["rings"]["learner/replay"]
    assert ring["frames"] == {"frames0": ["obs0", "next_obs0"]}
    resealed(of_images, rings={"learner/replay": {**ring, "frames": frames}})
    with pytest.raises(CheckpointError, match="is refused"):
        read_checkpoint(of_images)


def test_a_format_has_frames_or_has_none(of_images: Path, shared: Path) -> None:
    for path, number in ((of_images, 2), (of_images, 1), (shared, 3)):
        resealed(path, format=number)
        with pytest.raises(CheckpointError, match="has other parts"):
            read_checkpoint(path)


def with_segment(path: Path, number: int, **changes: np.ndarray | None) -> None:
    """Arrays of a segment replaced, or left out, under a right hash."""
    from safetensors.numpy import load_file, save

    columns = {**load_file(path / IMAGES[number]), **changes}
    content = save({name: array for name, array in columns.items() if array is not None})
    (path / IMAGES[number]).write_bytes(content)
    files = json.loads((path / MANIFEST).read_bytes())["files"]
    resealed(path, files={**files, IMAGES[number]: proof_of(content)})


def odd_ids(value: int) -> np.ndarray:
    ids = np.zeros((16, 4), np.int32)
    ids[3, 1] = value
    return ids


@pytest.mark.parametrize(
    "changes",
    [
        {"obs0": odd_ids(-1)},
        {"obs0": odd_ids(10**6)},
        {"next_obs0": odd_ids(2**31 - 1)},
        {"obs0": odd_ids(0).astype(np.int64)},
        {"obs0": odd_ids(0).astype(np.float32)},
        {"obs0": np.zeros((16, 4, 1), np.int32)},
        {"obs0": np.zeros(16, np.int32)},
        {"obs0": np.zeros((16, 0), np.int32), "next_obs0": np.zeros((16, 0), np.int32)},
        {"obs0": np.zeros((16, 5), np.int32)},
        {"obs0": None},
        {"frames0": None},
        {"frames0": np.zeros((0, 36, 36), np.uint8)},
        {"frames0": np.zeros((99, 0, 36), np.uint8)},
        {"frames0": np.zeros((99, 36, 37), np.uint8)},
        {"frames0": np.zeros((99, 36, 36), np.int8)},
        {"frames0": np.zeros((), np.uint8)},
    ],
    ids=lambda changes: " ".join(f"{name} {getattr(array, 'shape', '')}" for name, array in changes.items()),
)
def test_well_sealed_segments_of_other_frames_are_refused(of_images: Path, changes: dict[str, np.ndarray]) -> None:
    read_checkpoint(of_images)
    with_segment(of_images, 1, **changes)
    with pytest.raises(CheckpointError, match="has other rows than its manifest says"):
        read_checkpoint(of_images)


@pytest.mark.parametrize("shape", [(36, 35), (36, 36, 1), (36,), ()], ids=str)
def test_frames_of_another_size_are_no_replay_of_this(of_images: Path, shape: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    for number in range(3):
        with_segment(of_images, number, frames0=np.zeros((99, *shape), np.uint8))
    experiment, _ = experiment_of(read_checkpoint(of_images).experiment_tree, trust=True)
    with shoal.DQN(config=experiment.config) as trainer, pytest.raises(CheckpointError, match="not what shoal saves"):
        trainer.restore(of_images)


def test_frames_that_memory_cannot_hold_are_a_sentence(of_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "CHUNK_BYTES", 1 << 13)
    monkeypatch.setattr(frames, "available_memory", lambda: frames.LEAST_LEFT)
    with pytest.raises(CheckpointError, match="replay is too much for the memory"):
        read_checkpoint(of_images)
