"""What a peer is asked in the rows of reliability; `survive_sb3.py` and `survive_rllib.py` answer.

python survive_WHO.py save FOLDER SEED        a checkpoint there, of a model that has learned
python survive_WHO.py save-for-ever FOLDER    overwrite one, and print the number in each
python survive_WHO.py save-replay-for-ever FOLDER  the same of a replay buffer, where the peer can save one
python survive_WHO.py swap FOLDER OTHER ...   put a part of OTHER in the place of the same part of FOLDER
python survive_WHO.py load FOLDER ...         a line of JSON for each: what is in it, or why it cannot be loaded
python survive_WHO.py bombs FOLDER PLACE      copies of the checkpoint FOLDER with a stranger's object, in PLACE
python survive_WHO.py fail-calls FOLDER WITH  let each system call of a save fail (under the shim of tests/faults)
python survive_WHO.py resume FOLDER           runs that were cut in two, beside runs that were not
python survive_WHO.py train FOLDER WORKERS    train until somebody ends it
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

ENOUGH = 1 << 30
CODES = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EDQUOT": errno.EDQUOT, "short write": 0}


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Bomb:
    """Makes a file when it is unpickled: a stranger's code has run."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> Any:
        return open, (self.canary, "w")


def digest(tree: Any) -> str:
    """What stands for every number of a tree."""
    whole = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                whole.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            whole.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif hasattr(value, "tobytes"):
            whole.update(value.tobytes())
        else:
            whole.update(repr(value).encode())

    add(tree)
    return whole.hexdigest()[:16]


def loaded(peer: Any, place: Path) -> dict[str, Any]:
    """What is in a checkpoint, or the error that says that it cannot be loaded."""
    try:
        if (place / "replay.pkl").exists():
            return {"number": peer.replay_number(place / "replay.pkl")}
        model = peer.load(place)
        return {"number": peer.number_of(model), "digest": peer.digest(model)}
    except Exception as error:
        return {"error": type(error).__name__}


def save_for_ever(peer: Any, folder: Path) -> None:
    """Overwrite a checkpoint until somebody ends it."""
    model = peer.new()
    for number in itertools.count():
        peer.save(peer.numbered(model, number), folder)
        say(str(number))


def bombs(peer: Any, folder: Path, place: Path) -> None:
    """Copies of a checkpoint, each with a stranger's object in another of its parts."""
    for number in itertools.count():
        canary = place / f"canary-{number:03}"
        parts = list(peer.bombs(folder, canary))
        if number == len(parts):
            return
        name, files = parts[number]
        copy = place / f"copy-{number:03}"
        shutil.copytree(folder, copy)
        for file, content in files.items():
            (copy / file).write_bytes(content)
        say(json.dumps({"part": name, "copy": str(copy), "canary": str(canary)}))


def fail_calls(peer: Any, folder: Path, names: list[str]) -> None:
    """Overwrite a checkpoint with call after call failing: is the old one, or the new one, there afterwards?"""
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    shim.failed_call.restype = ctypes.c_char_p
    model = peer.new()

    def tried(at: int, code: int) -> tuple[int, str]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        peer.save(peer.numbered(model, 1), folder)
        peer.numbered(model, 2)
        shim.arm(at, code)
        with contextlib.suppress(Exception):  # which is what a program is to be told
            peer.save(model, folder)
        return shim.disarm(), shim.failed_call().decode()

    calls, _ = tried(ENOUGH, errno.EIO)
    for name in names:
        for at in range(1, calls + 1):
            _, failed = tried(at, CODES[name])
            if name == "short write" and failed not in ("write", "pwrite"):
                continue
            found = loaded(peer, folder)
            say(json.dumps({"with": name, "call": failed, "found": found.get("number", found.get("error"))}))


def main(peer: Any) -> None:
    """Run as a program."""
    command, *words = sys.argv[1:]
    match command, words:
        case "save", [folder, seed]:
            Path(folder).mkdir(parents=True, exist_ok=True)
            peer.save(peer.learned(int(seed)), Path(folder))
        case "save-for-ever", [folder]:
            save_for_ever(peer, Path(folder))
        case "save-replay-for-ever", [folder]:
            peer.save_replay_for_ever(Path(folder))
        case "load", places:
            for place in places:
                say(json.dumps({"place": place, **loaded(peer, Path(place))}))
        case "swap", pairs:
            for one, other in zip(pairs[::2], pairs[1::2], strict=True):
                peer.swapped(Path(one), Path(other))
        case "bombs", [folder, place]:
            bombs(peer, Path(folder), Path(place))
        case "fail-calls", [folder, *names]:
            fail_calls(peer, Path(folder), names)
        case "resume", [folder]:
            for name, digests in peer.resumed(Path(folder)):
                say(json.dumps({"name": name, "digests": digests}))
        case "train", [folder, num_workers]:
            peer.train(Path(folder), int(num_workers))
        case _:
            raise SystemExit(__doc__)
