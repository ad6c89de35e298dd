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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

import numpy as np
from reliability_figures import Found, all_of, none_of

from shoal.data.state import State
from shoal.errors import CheckpointError
from shoal.runs.checkpoint_folders import LIMITS, MANIFEST
from shoal.runs.checkpoints import newest_good, read_checkpoint, write_checkpoint

FAULTS = Path(__file__).resolve().parent.parent / "tests" / "faults"
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


def killed_in_saves(
    words: Sequence[str | Path], choose: random.Random, environment: Mapping[str, str] | None = None
) -> list[str]:
    """The lines of a process that saves for ever, killed at a random moment of a save after a few of them."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert child.stdout is not None
    lines, longest_s = [], MOST_MOMENT_S
    for _ in range(choose.randint(2, 5)):
        began = monotonic()
        lines.append(child.stdout.readline())
        longest_s = monotonic() - began  # of the last, which is no start
    sleep(choose.uniform(0, max(longest_s, MOST_MOMENT_S)))
    child.send_signal(signal.SIGKILL)
    with child:
        return [*lines, *child.stdout.readlines()]


def killed_saves(count: int, folder: Path) -> Found:
    """Kill a process that overwrites its checkpoint; what it has acknowledged must be there, or what came after."""
    choose = random.Random(17)
    resumable = lost = start = 0
    for _ in range(count):
        lines = killed_in_saves([sys.executable, "-c", SAVE_FOR_EVER, folder, str(start)], choose)
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
        lines = killed_in_saves([sys.executable, Path(save_replay.__file__), folder], choose)
        acknowledged = int([line for line in lines if line.endswith("\n")][-1])
        found = newest_good(folder)
        resumable += found is not None and save_replay.is_whole(found)
        lost += found is None or found.summary["end"] < acknowledged
    bars = [all_of("resumable", resumable, count), none_of("acknowledged checkpoints lost", lost)]
    return Found(count, f"{resumable} of {count} resumable, {lost} acknowledged lost", bars)


def shim(folder: Path) -> Path:
    """What stands before the C library's calls to the file system, made anew."""
    made = folder / "failing_calls.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "a C compiler makes the shim"
    words = [compiler, "-shared", "-fPIC", "-o", made, FAULTS / "failing_calls.c", "-ldl", "-lpthread"]
    subprocess.run(words, check=True)
    return made


def failed_calls(_: int, folder: Path) -> Found:
    """Fail every call to the file system that a save makes, once each."""
    place = folder / "runs"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, FAULTS / "save_under_failures.py", place],
        env={**os.environ, "LD_PRELOAD": str(shim(folder))},
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
