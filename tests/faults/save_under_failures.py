"""Saves a run's checkpoint again and again, each time with another system call that fails; run by `test_every_call`.

With `--once` none fails, and what the shim has seen of each way of saving is printed, for who traces the process.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.experiment import experiment_from
from shoal.data.state import Ring, State
from shoal.envs.importing import UserCode
from shoal.errors import CheckpointError
from shoal.runs import row_segments, run_folder
from shoal.runs.chain import Chain, read_chain
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import newest_good, read_checkpoint, tidy
from shoal.runs.run_folder import RunFolder

SHORT = 0
CODES = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EDQUOT": errno.EDQUOT, "short write": SHORT}
WRITES = ("write", "pwrite")
ENOUGH = 1 << 30

shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
shim.failed_call.restype = shim.call_name.restype = ctypes.c_char_p


class OfTheWriter:
    """Lets the calls of the thread that writes beside training fail, in place of those of the main thread."""

    def __init__(self) -> None:
        self._real = run_folder.write_checkpoint

    def __call__(self, *given: Any) -> Path:
        shim.follow()
        return self._real(*given)


def state(iteration: int) -> State:
    """Weights, and replay of which a part is new and a part is in earlier checkpoints."""
    values: dict[str, Any] = {"training_iteration": iteration, "timesteps_total": iteration, "env_failures_total": 0}
    values |= {"policy": {}, "learner": {}, "episodes": {"total": 0}}
    ring = Ring("one", 0, 8 * iteration, 1000, ("x",))
    arrays = {"policy/params": np.full(1000, iteration, np.float32), "learner/replay.x.0": np.arange(ring.end * 1.0)}
    return State(values, arrays, rings={"learner/replay": ring})


def summary(iteration: int) -> dict[str, float]:
    return {"training_iteration": iteration}


def weight(path: Path) -> float:
    arrays = read_checkpoint(path).state.arrays
    iteration = float(arrays["policy/params"][-1])
    assert arrays["learner/replay.x.0"].tolist() == [*range(8 * int(iteration))], "replay is another"
    return iteration


class Desk:
    """A run's folder with a good checkpoint of its first iteration."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        tree = {"name": "one", "env": "CartPole-v1", "checkpoint_freq": 1, "keep_checkpoints_num": 1}
        self.kept = RunFolder(place, experiment_from(tree), UserCode.at(place))

    def new(self) -> None:
        """Save the second iteration beside the first, which is removed then."""
        self.kept.note(summary(2), state(2))
        self.kept.link()
        self.kept.save_if_due()
        self.kept.settle()

    def replaced(self) -> None:
        """Put another state in the place of the first."""
        first = newest_good(self.kept.path)
        assert first is not None
        shim.arm(*self.order)
        try:
            self.kept.replace(first, state(1))
        except CheckpointError as error:
            if "could not be written" not in str(error):
                raise

    order = (ENOUGH, errno.EIO)


def attempt(place: Path, how: str, at: int, code: int) -> tuple[int, str]:
    """Let call number `at` fail; returns how many calls there were, and which of them failed."""
    desk = Desk(place)
    with desk.kept.held():
        desk.kept.chain = Chain(place, 0, {})
        desk.kept.note(summary(1), state(1))
        desk.kept.save()
        desk.order = (at, code)
        if how == "new":
            shim.arm(at, code)
            desk.new()
        else:
            desk.replaced()
        seen = shim.disarm()
        found = newest_good(place)
        assert found is not None, "no checkpoint is left"
        assert all(weight(path) == int(path.name[-6:]) for path in checkpoints_of(place)), "one is damaged"
        # The disk is well again: the next save does what this one could not.
        after = 3 if how == "new" else 2
        desk.kept.note(summary(after), state(after))
        desk.kept.link()
        desk.kept.save_if_due()
        desk.kept.settle()
        desk.kept.chain.close()
    tidy(place)
    assert weight(checkpoints_of(place)[0]) == after
    chain = read_chain(place)
    assert chain is not None
    assert not chain.problems
    assert not [child.name for child in place.iterdir() if child.name.startswith((".tmp-", ".old-"))]
    return seen, shim.failed_call().decode()


WAYS = ("new", "replaced")


def look(folder: Path) -> None:
    """Print which calls each way of saving makes, once everything that it needs is imported."""
    for way in WAYS:
        attempt(folder / f"warm-{way}", way, ENOUGH, errno.EIO)
    seen = {}
    for way in WAYS:
        calls, _ = attempt(folder / way, way, ENOUGH, errno.EIO)
        seen[way] = Counter(shim.call_name(number).decode() for number in range(1, calls + 1))
    print(json.dumps(seen))


def main(folder: Path) -> None:
    """Print how many points were tried, and how often each call failed."""
    number = 0
    tried: Counter[str] = Counter()
    for how in WAYS:
        calls, _ = attempt(folder / f"warm-{how}", how, ENOUGH, errno.EIO)
        calls, _ = attempt(folder / f"count-{how}", how, ENOUGH, errno.EIO)
        names: dict[int, str] = {}
        for name, code in CODES.items():
            for at in range(1, calls + 1):
                if code == SHORT and names[at] not in WRITES:
                    continue
                number += 1
                try:
                    _, failed = attempt(folder / f"{number:05}", how, at, code)
                except BaseException as error:
                    failed = shim.failed_call().decode()
                    shim.disarm()
                    raise SystemExit(f"{how}: call {at} of {calls}, {failed}, {name}: {error!r}") from error
                names[at] = failed
                tried[failed] += 1
    print(json.dumps({"points": sum(tried.values()), "calls": dict(tried.most_common())}))


if __name__ == "__main__":
    logging.disable()
    row_segments.SEGMENT_BYTES = 64  # eight rows
    run_folder.write_checkpoint = OfTheWriter()
    (look if "--once" in sys.argv else main)(Path(sys.argv[1]))
