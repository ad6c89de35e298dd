"""Checkpoints under kill -9, full disks, damage and malice."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import save_replay

from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.runs.checkpoint_folders import LIMITS, MANIFEST
from shoal.runs.checkpoints import newest_good, read_checkpoint, tidy, write_checkpoint

STATE = State(
    {"iteration": 3, "rng": {"state": 2**127 + 1, "inc": 2**128 - 1}, "name": "Zoë"},
    {
        "weights": np.arange(1000, dtype=np.float32),
        "flags": np.array([True, False]),
        "scale": np.float64(2).reshape(()),
    },
)
TREE = {"env": "CartPole-v1", "run": "PPO"}


def saved(folder: Path, iteration: int = 1) -> Path:
    return write_checkpoint(folder, STATE, TREE, {"training_iteration": iteration})


def same(state: State) -> bool:
    return state.values == STATE.values and all(
        np.array_equal(state.arrays[name], array) and state.arrays[name].dtype == array.dtype
        for name, array in STATE.arrays.items()
    )


SAVE_FOREVER = """
import itertools, sys
import numpy as np
from pathlib import Path
from shoal.data.state import State
from shoal.runs.checkpoints import write_checkpoint
folder, same_name = Path(sys.argv[1]), sys.argv[2] == "same"
for number in itertools.count(int(sys.argv[3])):
    state = State({"number": number}, {"weights": np.full(20_000, number, np.float32)})
    path = write_checkpoint(folder, state, {}, {"training_iteration": 7 if same_name else number, "number": number})
    sys.stdout.write(f"{number} {path}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("names", ["same", "new"])
def test_every_acknowledged_checkpoint_survives_kill_9(tmp_path: Path, names: str) -> None:
    choose = random.Random(names)
    start = 0
    for _ in range(10):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOREVER, str(tmp_path), names, str(start)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(choose.randint(1, 6))]
        # The pipe tells that a save ended, so the child is at a random place in the next ones when it dies.
        for _ in range(choose.randint(0, 300_000)):
            pass
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        acknowledged = [line.split(maxsplit=1) for line in lines if line.endswith("\n")]
        number, path = int(acknowledged[-1][0]), Path(acknowledged[-1][1].strip())
        checkpoint = read_checkpoint(path)
        assert checkpoint.summary["number"] >= number
        assert set(checkpoint.state.arrays["weights"]) == {checkpoint.state.values["number"]}
        found = newest_good(tmp_path)
        assert found is not None
        assert found.summary["number"] >= number
        tidy(tmp_path)
        assert not [child for child in tmp_path.iterdir() if child.name.startswith(".")]
        assert read_checkpoint(tmp_path).summary["number"] >= number
        start = number + 2


def test_every_acknowledged_replay_survives_kill_9(tmp_path: Path) -> None:
    choose, is_shared = random.Random(4), False
    for _ in range(6):
        words = [sys.executable, Path(save_replay.__file__), tmp_path]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(choose.randint(1, 9))]
        for _ in range(choose.randint(0, 300_000)):
            pass
        child.send_signal(signal.SIGKILL)
        with child:
            lines += child.stdout.readlines()
        found = newest_good(tmp_path)
        assert found is not None
        assert found.summary["end"] >= int([line for line in lines if line.endswith("\n")][-1])
        assert save_replay.is_whole(found)
        is_shared |= any(file.stat().st_nlink > 1 for file in found.path.glob("*/*"))
    assert found.summary["end"] > 2 * save_replay.ROWS  # the circle has begun anew
    assert is_shared


def test_the_moment_between_two_renames_is_covered(tmp_path: Path) -> None:
    path = saved(tmp_path, 7)
    os.rename(path, tmp_path / ".old-checkpoint_000007")
    assert same(read_checkpoint(path).state)
    assert newest_good(tmp_path) is not None
    tidy(tmp_path)
    assert path.is_dir()
    assert same(read_checkpoint(path).state)


def damaged(content: bytes, how: str, choose: random.Random) -> bytes:
    at = choose.randrange(len(content))
    if how == "bit flip":
        return content[:at] + bytes([content[at] ^ 1 << choose.randrange(8)]) + content[at + 1 :]
    if how == "truncation":
        return content[:at]
    if how == "zeros":
        return content[:at] + bytes(len(content) - at) if any(content[at:]) else b""
    if how == "garbage":
        return choose.randbytes(len(content))
    return content + b"\0"


@pytest.mark.parametrize("name", [*LIMITS, MANIFEST])
@pytest.mark.parametrize("how", ["bit flip", "truncation", "zeros", "garbage", "one byte more"])
def test_damage_is_refused_and_the_one_before_is_found(tmp_path: Path, name: str, how: str) -> None:
    choose = random.Random(f"{name} {how}")
    good, bad = saved(tmp_path, 1), saved(tmp_path, 2)
    whole = (bad / name).read_bytes()
    for _ in range(50):
        (bad / name).write_bytes(damaged(whole, how, choose))
        with pytest.raises(CheckpointError, match="checkpoint_000002"):
            read_checkpoint(bad)
    found = newest_good(tmp_path)
    assert found is not None
    assert found.path == good
    assert same(found.state)
    (bad / name).write_bytes(whole)
    assert same(read_checkpoint(bad).state)


def test_fallback_says_what_was_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 1)
    (saved(tmp_path, 2) / "state.json").write_text("{}")
    assert newest_good(tmp_path) is not None
    assert "checkpoint_000002 is refused: state.json is not what was saved" in caplog.text


def test_a_mix_of_two_checkpoints_is_refused(tmp_path: Path) -> None:
    first = saved(tmp_path, 1)
    other = State(STATE.values, {**STATE.arrays, "weights": -STATE.arrays["weights"]})
    second = write_checkpoint(tmp_path, other, TREE, {"training_iteration": 2})
    shutil.copy(first / "arrays.safetensors", second / "arrays.safetensors")
    with pytest.raises(CheckpointError, match=r"arrays.safetensors is not what was saved"):
        read_checkpoint(second)


@pytest.mark.parametrize("name", [*LIMITS, MANIFEST])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read_checkpoint(path)


def test_a_strange_file_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / ".nfs000001").touch()
    assert same(read_checkpoint(path).state)
    (path / "policy.pkl").touch()
    with pytest.raises(CheckpointError, match=r"policy.pkl does not belong there"):
        read_checkpoint(path)


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "state.json").rename(tmp_path / "elsewhere")
    (path / "state.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"state.json cannot be read"):
        read_checkpoint(path)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_checkpoint(path)


def with_manifest(path: Path, **changes: object) -> None:
    from shoal.runs.checkpoints import _manifest_bytes

    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest.pop("sha256")
    (path / MANIFEST).write_bytes(_manifest_bytes({**manifest, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 4}, "has format 4, this shoal .* reads up to 3"),
        ({"format": 2}, "format 2 has other parts"),
        ({"rings": {}}, "format 1 has other parts"),
        ({"format": 0}, "damaged"),
        ({"format": "1"}, "damaged"),
        ({"files": []}, "damaged"),
        ({"summary": None}, "damaged"),
        ({"files": {}}, "does not tell the size of"),
    ],
)
def test_a_well_signed_but_wrong_manifest_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = saved(tmp_path)
    with_manifest(path, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> object:
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("name", [*LIMITS, MANIFEST])
@pytest.mark.parametrize("signed", [False, True])
def test_a_pickle_is_never_run(tmp_path: Path, name: str, signed: bool) -> None:
    from shoal.runs.bounded_files import proof_of

    path, canary = saved(tmp_path), tmp_path / "executed"
    content = pickle.dumps(Bomb(canary))
    (path / name).write_bytes(content)
    if signed and name != MANIFEST:
        files = json.loads((path / MANIFEST).read_bytes())["files"]
        with_manifest(path, files={**files, name: proof_of(content)})
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert newest_good(tmp_path) is None
    assert not canary.exists()


DEEP = b"[" * 200_000


def test_deep_json_is_refused(tmp_path: Path) -> None:
    from shoal.runs.bounded_files import proof_of

    path = saved(tmp_path)
    (path / "state.json").write_bytes(DEEP)
    files = json.loads((path / MANIFEST).read_bytes())["files"]
    with_manifest(path, files={**files, "state.json": proof_of(DEEP)})
    with pytest.raises(CheckpointError, match="cannot be parsed"):
        read_checkpoint(path)
    (path / MANIFEST).write_bytes(DEEP)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


BIG = State({}, {"weights": np.zeros(1_000_000, np.float32)})


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "shoal", disk], check=False).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    try:
        good = saved(disk, 7)
        for iteration in (7, 8):
            with pytest.raises(CheckpointError, match="No space left on device"):
                write_checkpoint(disk, BIG, TREE, {"training_iteration": iteration})
        assert [child.name for child in disk.iterdir()] == [good.name]
        assert same(read_checkpoint(good).state)
        assert same(read_checkpoint(saved(disk, 8)).state)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_size_limit_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    good = saved(tmp_path, 7)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (0, 100, 5_000, 1_000_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(CheckpointError, match="File too large"):
                write_checkpoint(tmp_path, BIG, TREE, {"training_iteration": 7})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [child.name for child in tmp_path.iterdir()] == [good.name]
        assert same(read_checkpoint(good).state)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="could not be written"):
        saved(tmp_path / "file")


def test_an_interrupt_in_a_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = saved(tmp_path, 7)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.runs.checkpoints.sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, BIG, TREE, {"training_iteration": 7})
    assert [child.name for child in tmp_path.iterdir()] == [good.name]
    assert same(read_checkpoint(good).state)
