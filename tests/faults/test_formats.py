"""Checkpoints of every format that shoal has ever written are read, and trained on, for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import shoal
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
    experiment, _ = experiment_of(checkpoint.experiment_tree)
    with getattr(shoal, experiment.run)(config=experiment.config) as trainer:
        trainer.restore(path)
        assert trainer.iteration == checkpoint.summary["training_iteration"]
        again = read_checkpoint(trainer.save(tmp_path))
        for name, array in checkpoint.state.arrays.items():
            if name.startswith(("policy/", "learner/")):
                np.testing.assert_array_equal(array, again.state.arrays[name], err_msg=name)
        assert trainer.train()["training_iteration"] == trainer.iteration
    shoal.Policy.load(path).compute_single_action(np.zeros(4, np.float32))


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
