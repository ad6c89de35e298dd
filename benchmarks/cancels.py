"""How jobs end that are cancelled while they train: on the test bed's real Slurm, one after another on one node.

Counted are those that have saved, ended with the documented code, and left no process and no file. The nodes are the
test bed's (tests/cluster/bed.py); needs root and the packages in .ci/run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT
from record import Bar, Record, console, show_bars, spread

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from bed import Bed, wait_until
from daemons import start_slurm

LONGEST_S = 600.0
MOST_TRIES = 5  # of a job whose Ray does not come up
CLEAN_S = 30.0
SAVED_CODE = 143
CLAIMS = {
    "saved": "saved",
    "documented_code": f"ended with {SAVED_CODE}",
    "clean": "left nothing",
    "quiet": "said nothing of it but that they were interrupted",
}
TRAIN = "shoal train CartPole-v1 --seed 5 --num-workers 1 --set report=false --set train_batch_size=256"


def cancelled(bed: Bed, folder: Path, delay_s: float) -> dict[str, float]:
    """One job: what it has done when nothing of it is left, or after half a minute."""
    launched = f"shoal launch -- {TRAIN} --stop training_iteration=100000 --results-dir {folder}/results"
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\ntrap : TERM\n{launched} &\nwait $!\nwait $!\necho code $?\n")
    log = folder / "log"
    words = ["sbatch", "--parsable", "-N1", "-n1", "-c4", f"--output={log}", str(script)]
    said = lambda: log.read_text() if log.exists() else ""  # noqa: E731
    for _ in range(MOST_TRIES):
        log.unlink(missing_ok=True)
        job = bed.login.run(words, cwd=folder).out.strip()
        wait_until(lambda: re.search("^iter |^code ", said(), re.MULTILINE), LONGEST_S, "the job trains")
        if "could not start Ray" not in said():  # a busy machine is too slow for Ray's own limits: there is no run yet
            break
    time.sleep(delay_s)
    began = time.time()
    bed.login.run(["scancel", job])
    while (left := bed.left()) and time.time() - began < CLEAN_S:
        time.sleep(0.05)
    told = log.read_text()
    return {
        "saved": float("saved     checkpoint_" in told),
        "documented_code": float(f"\ncode {SAVED_CODE}\n" in told),
        "clean": float(not left),
        "quiet": float(not any(word in told for word in ("Traceback", "SystemError", "Killed", "was lost"))),
        "seconds": time.time() - began,
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    if os.geteuid() != 0:
        raise SystemExit("the nodes are namespaces, which only root can make")
    record = Record("cancels", ("shoal",), {"repeats": repeats})
    chance = random.Random(0)
    found = []
    with tempfile.TemporaryDirectory(prefix="bed-") as place, Bed(Path(place)) as bed:
        start_slurm(bed)
        for number in range(repeats):
            folder = bed.folder / f"job{number}"
            folder.mkdir()
            found.append(cancelled(bed, folder, chance.uniform(0, 2)))
            shown = ", ".join(f"{key} {value:g}" for key, value in found[-1].items())
            console.print(f"  {number + 1}/{repeats} {shown}", style="dim")
            bed.sweep()
    bars = [
        Bar(f"of {repeats} cancelled jobs, {what}", sum(each[key] for each in found), repeats, at_least=True)
        for key, what in CLAIMS.items()
    ]
    show_bars(bars)
    if not options.quick:
        record.keep({"seconds": spread([each["seconds"] for each in found]), "runs": found}, bars)


if __name__ == "__main__":
    main()
