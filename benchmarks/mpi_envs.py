"""32 environments of two MPI ranks on three nodes: slots that two of them share, and what is left of a killed run.

The nodes are the test bed's (tests/cluster/bed.py), each with the cores of this machine, and offer more slots than they
have cores. In each run every rank tells where it is, an environment and a worker are killed and come back, and then the
driver is killed. Needs root, Open MPI and the packages in .ci/run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import ROOT
from record import Bar, Record, console, show_bars

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from bed import Bed, wait_until
from rods import RANKS, START_S, Rods, driver_of, left_on, process_of

WORKERS, ENVS = 8, 4
CPUS = 24  # that each node offers: three workers fit on it
CLEAN_S = 60.0  # after which what is left counts as left


def measure(bed: Bed, folder: Path) -> dict[str, Any]:
    """One run, killed in three ways."""
    began = time.time()
    rods = Rods(bed, folder, WORKERS, ENVS, CPUS)
    rods.wait_for_iteration(1)
    found: dict[str, Any] = {"first_iteration_s": time.time() - began}
    rods.check_places()
    wait_until(lambda: len(rods.ranks()) == rods.num_envs * RANKS, START_S, "every rank is there")
    before = rods.present()
    found |= {
        "environments": len(before),
        "ranks": len(rods.ranks()),
        "nodes": len({record["host"] for record in before.values()}),
        "shared_slots": rods.shared_slots(),
    }
    process_of(bed, before[17]).kill()
    wait_until(lambda: rods.present()[17]["pid"] != before[17]["pid"], START_S, "environment 17 is back")
    process_of(bed, rods.present()[0]).parent().parent().kill()  # the worker of four environments
    wait_until(lambda: all(rods.present()[k]["pid"] != before[k]["pid"] for k in range(ENVS)), START_S, "four are back")
    rods.check_places()
    found["shared_slots_after_failures"] = rods.shared_slots()
    driver_of(bed).kill()
    killed = time.time()
    while (left := left_on(bed)) and time.time() - killed < CLEAN_S:
        time.sleep(0.05)
    return {**found, "left": len(left), "clean_after_s": time.time() - killed}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run; nothing is kept")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("the nodes are namespaces, which only root can make")
    repeats = 1 if options.quick else options.repeats
    record = Record("mpi_envs", ("shoal",), {"environments": WORKERS * ENVS, "ranks": RANKS, "nodes": 3, "cpus": CPUS})
    runs = []
    with tempfile.TemporaryDirectory(prefix="bed-") as folder, Bed(Path(folder)) as bed:
        for number in range(repeats):
            here = bed.folder / f"run{number}"
            here.mkdir()
            runs.append(measure(bed, here))
            console.print(runs[-1])
            bed.sweep()
    bars = [
        Bar("environments in every run", min(run["environments"] for run in runs), WORKERS * ENVS, at_least=True),
        Bar("shared slots", sum(run["shared_slots"] for run in runs), 0, at_least=False),
        Bar("shared slots after failures", sum(run["shared_slots_after_failures"] for run in runs), 0, at_least=False),
        Bar("left after kill -9 of the driver", sum(run["left"] for run in runs), 0, at_least=False),
    ]
    show_bars(bars)
    if not options.quick:
        record.keep({"runs": runs}, bars)


if __name__ == "__main__":
    main()
