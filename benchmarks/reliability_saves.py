"""Checkpoints: killed while they are saved, with calls that fail, damaged, and made by strangers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
from peers import python_of
from reliability_figures import Found, all_of, none_of

from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.runs.checkpoint_folders import LIMITS, MANIFEST
from shoal.runs.checkpoints import newest_good, read_checkpoint, write_checkpoint

MOST_OF_SB3 = 40
MOST_MOMENT_S = 0.03  # of saves that take a few milliseconds

SAVE_FOR_EVER = """
import itertools, sys
import numpy as np
from pathlib import Path
from shoal.data.state import State
from shoal.runs.checkpoints import write_checkpoint
for number in itertools.count(int(sys.argv[2])):
    state = State({"number": number}, {"weights": np.full(200_000, number, np.float32)})
    path = write_checkpoint(Path(sys.argv[1]), state, {}, {"training_iteration": 7, "number": number})
    print(number, flush=True)
"""

SB3_SAVE_FOR_EVER = """
import sys
from stable_baselines3 import PPO
model = PPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"net_arch": [400, 400]})
while True:
    model.save(sys.argv[1] + "/model.zip")
    print("saved", flush=True)
"""

SB3_LOAD = """
import glob, json, sys
from stable_baselines3 import PPO
outcomes = {}
for path in sorted(glob.glob(sys.argv[1] + "/*.zip")):
    try:
        PPO.load(path, device="cpu")
        outcomes[path] = "loaded"
    except Exception as error:
        outcomes[path] = type(error).__name__
print(json.dumps(outcomes))
"""

SB3_BOMB = """
import io, json, os, pickle, sys, zipfile, base64
from stable_baselines3 import PPO
class Bomb:
    def __reduce__(self):
        return (open, (sys.argv[2], "w"))
path = sys.argv[1] + "/model.zip"
PPO("MlpPolicy", "CartPole-v1", device="cpu").save(path)
import cloudpickle
with zipfile.ZipFile(path) as archive:
    parts = {name: archive.read(name) for name in archive.namelist()}
data = json.loads(parts["data"])
data["lr_schedule"] = {":type:": "x", ":serialized:": base64.b64encode(cloudpickle.dumps(Bomb())).decode()}
parts["data"] = json.dumps(data).encode()
with zipfile.ZipFile(path, "w") as archive:
    for name, content in parts.items():
        archive.writestr(name, content)
try:
    PPO.load(path, device="cpu")
except Exception:
    pass
print(json.dumps({"executed": os.path.exists(sys.argv[2])}))
"""


def _killed_in_saves(words: list[str | Path], choose: random.Random) -> list[str]:
    """The lines of a process that saves for ever, killed at a random moment after a few of its saves."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(choose.randint(1, 4))]
    sleep(choose.uniform(0, MOST_MOMENT_S))
    child.send_signal(signal.SIGKILL)
    with child:
        return [*lines, *child.stdout.readlines()]


def killed_saves(count: int, folder: Path) -> Found:
    """Kill a process that overwrites its checkpoint; what it has acknowledged must be there, or what came after."""
    choose = random.Random(17)
    resumable = lost = start = 0
    for _ in range(count):
        lines = _killed_in_saves([sys.executable, "-c", SAVE_FOR_EVER, folder, str(start)], choose)
        acknowledged = int([line for line in lines if line.endswith("\n")][-1])
        found = newest_good(folder)
        if found is not None and set(found.state.arrays["weights"]) == {found.state.values["number"]}:
            resumable += 1
        lost += found is None or found.summary["number"] < acknowledged
        start = acknowledged + 2
    bars = [all_of("resumable", resumable, count), none_of("acknowledged checkpoints lost", lost)]
    figure = f"{resumable} of {count} resumable, {lost} acknowledged lost"
    return Found(count, figure, bars)


def killed_replay(count: int, folder: Path) -> Found:
    """The same of replay, whose checkpoints share files with those before; every row must be the one it should be."""
    import save_replay

    choose = random.Random(17)
    resumable = lost = 0
    for _ in range(count):
        lines = _killed_in_saves([sys.executable, Path(save_replay.__file__), folder], choose)
        acknowledged = int([line for line in lines if line.endswith("\n")][-1])
        found = newest_good(folder)
        resumable += found is not None and save_replay.is_whole(found)
        lost += found is None or found.summary["end"] < acknowledged
    bars = [all_of("resumable", resumable, count), none_of("acknowledged checkpoints lost", lost)]
    return Found(count, f"{resumable} of {count} resumable, {lost} acknowledged lost", bars)


def sb3_killed_saves(count: int, folder: Path) -> str:
    """One file is overwritten, as `model.save` does it; each start takes seconds, so it is tried less often."""
    choose = random.Random(17)
    count = min(count, MOST_OF_SB3)
    for number in range(count):
        _killed_in_saves([python_of("sb3"), "-c", SB3_SAVE_FOR_EVER, folder], choose)
        shutil.copy(folder / "model.zip", folder / f"after-{number:03}.zip")
    (folder / "model.zip").unlink()
    outcomes = _sb3(SB3_LOAD, folder)
    return f"{list(outcomes.values()).count('loaded')} of {count} loadable"


def _sb3(program: str, *words: str | Path) -> dict[str, Any]:
    done = subprocess.run([python_of("sb3"), "-c", program, *words], check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def failed_calls(_: int, folder: Path) -> Found:
    """Fail every call to the file system that a save makes, once each."""
    faults = Path(__file__).resolve().parent.parent / "tests" / "faults"
    shim = folder / "failing_calls.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "a C compiler makes the shim"
    words = [compiler, "-shared", "-fPIC", "-o", shim, faults / "failing_calls.c", "-ldl", "-lpthread"]
    subprocess.run(words, check=True)
    place = folder / "runs"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, faults / "save_under_failures.py", place],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout) if done.returncode == 0 else {"points": 0, "calls": {}}
    is_damaged = int(done.returncode != 0)
    figure = f"intact at all {told['points']} points" if not is_damaged else done.stderr.strip()[-200:]
    bars = [none_of("damaged", is_damaged), all_of("points", told["points"], 100)]
    return Found(told["points"], figure, bars, {"calls": told["calls"]})


STATE = State(
    {"iteration": 3, "rng": {"state": 2**127 + 1}, "name": "Zoë"},
    {"weights": np.arange(1000, dtype=np.float32), "flags": np.array([True, False])},
)


def _flip(content: bytes, choose: random.Random, _: bytes) -> bytes:
    at = choose.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << choose.randrange(8)]) + content[at + 1 :]


WAYS: dict[str, Callable[[bytes, random.Random, bytes], bytes]] = {
    "flip": _flip,
    "truncate": lambda content, choose, _: content[: choose.randrange(len(content))],
    "swap": lambda _, __, other: other,
    "zero": lambda content, choose, _: _zeroed(content, choose.randrange(len(content))),
    "garbage": lambda content, choose, _: choose.randbytes(len(content)),
}


def _zeroed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes(len(content) - at) if any(content[at:]) else b""


def corruptions(count: int, folder: Path) -> Found:
    """Damage one file of a checkpoint, in one of five ways; it must be refused with a sentence."""
    choose = random.Random(17)
    path = write_checkpoint(folder, STATE, {"env": "X"}, {"training_iteration": 1})
    other = State(STATE.values, {**STATE.arrays, "weights": -STATE.arrays["weights"]})
    second = write_checkpoint(folder, other, {"env": "Y"}, {"training_iteration": 2})
    outcomes: Counter[str] = Counter()
    for number in range(count):
        name = choose.choice([*LIMITS, MANIFEST])
        way = list(WAYS)[number % len(WAYS)]
        whole = (path / name).read_bytes()
        swapped = (second / name).read_bytes()
        if swapped == whole:  # two states with the same values: another file of the same checkpoint
            swapped = (path / next(each for each in LIMITS if each != name)).read_bytes()
        (path / name).write_bytes(WAYS[way](whole, choose, swapped))
        try:
            read_checkpoint(path)
            outcomes["loaded"] += 1
        except CheckpointError:
            outcomes["refused"] += 1
        except Exception as error:
            outcomes[type(error).__name__] += 1
        (path / name).write_bytes(whole)
    read_checkpoint(path)
    tracebacks = count - outcomes["loaded"] - outcomes["refused"]
    bars = [none_of("loaded silently", outcomes["loaded"]), none_of("tracebacks", tracebacks)]
    figure = f"{outcomes['loaded']} loaded silently, {tracebacks} tracebacks"
    return Found(count, figure, bars, {"outcomes": outcomes})


def sb3_flips(count: int, folder: Path) -> str:
    """Single bits of `model.zip`."""
    choose, count = random.Random(17), min(count, 200)
    program = SB3_SAVE_FOR_EVER.replace("while True:", "for _ in range(1):")
    subprocess.run([python_of("sb3"), "-c", program, folder], check=True, capture_output=True)
    whole = (folder / "model.zip").read_bytes()
    (folder / "model.zip").unlink()
    for number in range(count):
        (folder / f"flip-{number:03}.zip").write_bytes(_flip(whole, choose, b""))
    outcomes = Counter(_sb3(SB3_LOAD, folder).values())
    return f"{outcomes['loaded']} of {count} flips loaded"


def hostile(count: int, folder: Path) -> Found:
    """Runs and configurations that name a stranger's code, under every command that reads them."""
    import test_strangers as strangers

    import shoal

    os.environ["XDG_STATE_HOME"] = str(folder / "state")  # whose secret is not the tester's
    with shoal.PPO(env="CartPole-v1", config=strangers.SMALL) as trainer:
        origin = read_checkpoint(trainer.save(folder / "origin"))
    tries = [(name, command) for name in strangers.HOSTILE for command in strangers.COMMANDS]
    random.Random(17).shuffle(tries)
    executed = tracebacks = tried = 0
    for number, (name, command) in enumerate(tries[: max(count, 1)]):
        place = folder / f"{number:03}"
        place.mkdir()
        run, canary = strangers.forged(name, place, origin)
        result = strangers.COMMANDS[command](run)
        tried += 1
        executed += canary.exists()
        tracebacks += result.exception is not None and not isinstance(result.exception, SystemExit)
    bars = [none_of("executed", executed), none_of("tracebacks", tracebacks)]
    return Found(tried, f"{executed} executed, {tracebacks} tracebacks", bars)


def sb3_hostile(_: int, folder: Path) -> str:
    """A pickle in `model.zip`."""
    bomb = _sb3(SB3_BOMB, folder, folder / "canary")
    return f"{int(bomb['executed'])} of 1 executed"
