"""What needs several hosts: the bed of tests/cluster, with its real Slurm; as root, with the packages in .ci/run."""

from __future__ import annotations

import os
from pathlib import Path

from bed import Bed
from daemons import start_slurm
from record import Bar, console
from reliability_figures import Found, all_of
from trainings import LOSSES, Loss, NotUp, chain, lost_node, requeued

from shoal.runs.checkpoints import read_checkpoint

REQUEUES = 3
LOST_S = 10.0
MOST_TRIES = 5  # of a launch


def walltime(count: int, folder: Path) -> Found:
    """Runs that Slurm requeues three times at their walltime, against runs that never stopped."""
    assert os.geteuid() == 0, "the nodes are namespaces, which only root can make"
    equal = 0
    with Bed(folder / "bed") as bed:
        start_slurm(bed)
        for number in range(count):
            here = bed.folder / f"{number}"
            here.mkdir()
            run, straight = requeued(bed, here, REQUEUES)
            iterations = len(chain(run)) - 1
            is_equal = chain(run) == chain(straight) and _weights(run) == _weights(straight)
            equal += is_equal
            console.print(f"  {number + 1} of {count}: {iterations} iterations, equal: {is_equal}", style="dim")
            bed.sweep()
    figure = f"{equal} of {count} equal, byte for byte and at every iteration"
    return Found(count, figure, [all_of("final weights equal", equal, count)])


def _weights(run: Path) -> dict[str, bytes]:
    return {key: array.tobytes() for key, array in read_checkpoint(run).state.arrays.items()}


def _lost_node(bed: Bed, folder: Path, how: str) -> Loss:
    """Lose a node, once Ray has come up on all of them."""
    for attempt in range(MOST_TRIES):
        here = folder / f"{attempt}"
        here.mkdir(parents=True)
        try:
            return lost_node(bed, here, how)
        except NotUp:
            console.print("  Ray did not come up on every node; again", style="dim")
            bed.sweep()
    raise SystemExit("Ray does not come up on the nodes: this machine has too much else to do")


def lost_nodes(count: int, folder: Path) -> Found:
    """A node of three stopped or cut off while training goes on: the longest time between two iterations."""
    assert os.geteuid() == 0, "the nodes are namespaces, which only root can make"
    found = []
    once = 0
    with Bed(folder / "bed") as bed:
        for number in range(count):
            how = LOSSES[number % len(LOSSES)]
            loss = _lost_node(bed, bed.folder / f"{number}", how)
            found.append({"how": how, "longest_s": loss.longest_s, "before_s": loss.before_s})
            once += loss.reports == 1
            told = f"{loss.longest_s:.1f} s between two iterations, {loss.before_s:.1f} s at most before"
            console.print(f"  {number + 1} of {count}, {how}: {told}, told {loss.reports} times", style="dim")
            bed.sweep()
    slowest = {how: max((each["longest_s"] for each in found if each["how"] == how), default=0.0) for how in LOSSES}
    bars = [Bar("longest time", max(slowest.values()), LOST_S, at_least=False, unit=" s")]
    bars.append(all_of("told once, and ended when it came back", once, count))
    figure = ", ".join(f"{how}: {seconds:.1f} s" for how, seconds in slowest.items())
    return Found(count, f"at most {figure}", bars, more={"losses": found})
