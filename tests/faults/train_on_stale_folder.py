"""Trains a run whose folder is on a file system that goes stale; run by `test_stale_folder`.

Says what the command says at the end; writes what was told before, and what was found afterwards, as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from shoal.cli.run_view import tell_end
from shoal.config.experiment import experiment_from
from shoal.errors import CheckpointError
from shoal.runs.chain import read_chain
from shoal.runs.checkpoint_folders import checkpoints_of
from shoal.runs.checkpoints import read_checkpoint
from shoal.runs.run import Run

SMALL = {"num_envs_per_worker": 1, "train_batch_size": 16, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "seed": 1}

shim = ctypes.CDLL(os.environ["LD_PRELOAD"])


class Told(logging.Handler):
    """Keeps what a person would be told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def hash_of(checkpoint: Path) -> str:
    return sha256(b"".join(file.read_bytes() for file in sorted(checkpoint.iterdir()))).hexdigest()


def iterations_of(folder: Path) -> list[int]:
    return [json.loads(line)["training_iteration"] for line in (folder / "result.json").read_text().splitlines()]


def main(place: Path, comes_back: bool) -> dict[str, Any]:
    """Train twelve iterations; from the third to the eighth, or to the end, the folder cannot be reached."""
    told = Told()
    logging.getLogger("shoal").addHandler(told)
    keys = {"name": "one", "checkpoint_freq": 1, "report": False, "stop": {"training_iteration": 12}}
    run = Run.open(experiment_from({"env": "CartPole-v1", "results_dir": str(place), "config": SMALL, **keys}))
    found: dict[str, Any] = {"trained": [], "error": None}
    try:
        for result in run.results():
            iteration = result["training_iteration"]
            found["trained"].append(iteration)
            run._kept.wait()  # for the checkpoint that is being written
            if iteration == 3:
                before = hash_of(run.folder / "checkpoint_000003")
                shim.go_away(str(place).encode(), errno.ESTALE)
            if iteration == 8 and comes_back:
                shim.come_back()
    except CheckpointError as error:
        found["error"] = str(error)
    tell_end(run, found["error"] is not None)
    shim.come_back()
    found["told"] = list(told.lines)
    chain = read_chain(run.folder)
    assert chain is not None
    found["is_the_old_one_intact"] = hash_of(run.folder / "checkpoint_000003") == before
    found["checkpoints"] = [read_checkpoint(path).summary["training_iteration"] for path in checkpoints_of(run.folder)]
    found["left"] = [path.name for path in run.folder.iterdir() if path.name.startswith((".tmp-", ".old-"))]
    if comes_back:
        found["rows"], found["links"], found["problems"] = iterations_of(run.folder), [*chain.links], chain.problems
    else:
        again = Run.resume(run.folder)
        found["again"] = [result["training_iteration"] for result in again.results()]
        found["rows"] = iterations_of(run.folder)
    return found


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), sys.argv[2] == "comes back")
    Path(sys.argv[3]).write_text(json.dumps(found))
