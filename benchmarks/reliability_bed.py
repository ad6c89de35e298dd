"""What needs several hosts: the bed of tests/cluster, with its real Slurm; as root, with the packages in .ci/run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
from bed import Bed, Running, wait_until
from daemons import start_slurm, wait_until_idle
from launches import READY_S, launch
from record import Bar, console
from reliability_figures import Found, all_of
from trainings import LOSSES, SMALL, Loss, NotUp, chain, lost_node, requeued

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


def unable(count: int, folder: Path) -> Found:
    """A host of three that has neither shoal nor Python: the time until its name is told, and the code of the launch.

    By srun the clock starts with srun's own error; by salloc, where the launch alone hears that, with the allocation.
    """
    assert os.geteuid() == 0, "the nodes are namespaces, which only root can make"
    hidden = (str(Path(sys.executable).with_name("shoal")), os.path.realpath(sys.executable))
    found = []
    with Bed(folder / "bed") as bed:
        start_slurm(bed)
        for path in hidden:
            bed.nodes["n2"].run(["mount", "--bind", "/dev/null", path])
        for number in range(count):
            by, words = list(STARTS.items())[number % len(STARTS)]
            running = bed.login.popen([*words, *launch(command=["true"])])
            told_s, code = _told_after(running, FIRST_SIGNS[by])
            bed.login.run(["scancel", "--user=root"])
            found.append({"by": by, "told_s": told_s, "code": code})
            console.print(f"  {number + 1} of {count}, {by}: named after {told_s} s, code {code}", style="dim")
            wait_until_idle(bed, list(bed.nodes))
            bed.sweep()
    named = [each for each in found if each["told_s"] is not None]
    slowest = {by: max((each["told_s"] for each in named if each["by"] == by), default=0.0) for by in STARTS}
    bars = [
        all_of("the host is named, and the launch fails", sum(each["code"] != 0 for each in named), count),
        Bar("longest time", max(slowest.values()), NAMED_S, at_least=False, unit=" s"),
    ]
    figure = ", ".join(f"{by}: {seconds:.1f} s" for by, seconds in slowest.items())
    return Found(count, f"named in {len(named)} of {count}, at most {figure}", bars, more={"tries": found})


STARTS = {"srun": ["srun", "-N3", "-n3"], "salloc": ["salloc", "-N3"]}
FIRST_SIGNS = {"srun": r"^.*error.*n2.*|^.*execve.*$", "salloc": r"Granted job allocation"}
NAMED = re.compile(r"^Error: n2: .*", re.MULTILINE)
NAMED_S = 5.0


def _told_after(running: Running, sign: str) -> tuple[float | None, int]:
    """Seconds from a first sign until the host is named, None if it never is, and the code of the launch."""
    began = named = None
    first = re.compile(sign, re.MULTILINE)
    deadline = monotonic() + LONGEST_S
    while True:
        ended = running.ended  # before what it has said is read
        said, now = running.err, monotonic()
        if began is None and first.search(said):
            began = now
        if named is None and NAMED.search(said):
            named = now
        if ended or now > deadline:
            break
        sleep(LOOK_S)
    if not ended:
        running.send_signal(signal.SIGKILL)
    return None if began is None or named is None else named - began, running.wait()


LOOK_S = 0.02
LONGEST_S = 400.0  # a launch gives up after 300 s
CLEAN_S = 60.0
BAR_S = 10.0
LAUNCHERS = {
    "mpirun.openmpi": ["mpirun.openmpi", "-n", "2"],
    "mpiexec.hydra": ["mpiexec.hydra", "-n", "2"],
    "srun and its helper": ["srun", "-N2", "-n2"],
    "srun": ["srun", "-N2", "-n2"],
}


def killed_launchers(count: int, folder: Path) -> Found:
    """kill -9 of what has started a launch: seconds until nothing of ours is left on any node.

    When srun alone is gone, its helper has Slurm kill all of the step at once, so that nobody is left who could remove
    a file: there the processes count, and what files are left after the next launch.
    """
    assert os.geteuid() == 0, "the nodes are namespaces, which only root can make"
    found = []
    with Bed(folder / "bed") as bed:
        start_slurm(bed)
        for number in range(count):
            by, words = list(LAUNCHERS.items())[number % len(LAUNCHERS)]
            here = bed.folder / f"{number}"
            here.mkdir()
            work = f"touch {here / 'on'}; while :; do sleep 0.1; done"
            node = bed.login if "srun" in words else bed.nodes["n1"]
            running = node.popen([*words, *launch(command=["sh", "-c", work])])
            wait_until((here / "on").exists, READY_S, "the command runs")
            helpers = [] if by == "srun" else running.process.children()
            for process in [*helpers, running.process]:
                with contextlib.suppress(psutil.Error):
                    if process.name() in ("srun", "mpirun", "orterun", *LAUNCHERS):
                        process.kill()
            left, seconds = _left_after(partial(_running if by == "srun" else _ours, bed))
            bed.login.run(["scancel", "--user=root"])  # Slurm may keep the nodes of an srun that was killed
            wait_until_idle(bed, list(bed.nodes))
            if by == "srun" and not left:
                bed.login.popen([*words, *launch(command=["true"])]).wait(READY_S)
                wait_until_idle(bed, list(bed.nodes))
                left = _ours(bed)
            found.append({"by": by, "seconds": seconds, "left": left})
            console.print(f"  {number + 1} of {count}, {by}: nothing left after {seconds:.1f} s", style="dim")
            bed.sweep()
    return _left_found(found, list(LAUNCHERS))


def killed_driver(count: int, folder: Path) -> Found:
    """kill -9 of a training with a worker on each of three hosts: seconds until nothing is left on any of them."""
    assert os.geteuid() == 0, "the nodes are namespaces, which only root can make"
    found = []
    with Bed(folder / "bed") as bed:
        for number in range(count):
            here = bed.folder / f"{number}"
            here.mkdir()
            train = [*TRAIN, "--num-workers", "3", "--results-dir", str(here / "results")]
            running = bed.nodes["n1"].popen(launch("--hosts", "n1,n2,n3", "--num-cpus", "1", command=train), cwd=here)
            told = here / "results" / "CartPole-v1"
            wait_until(
                lambda told=told, running=running: running.ended or any(told.glob("*/result.json")),
                4 * READY_S,
                "it trains",
            )
            if "could not start Ray" in running.err:
                raise SystemExit("Ray does not come up on the nodes: this machine has too much else to do")
            (driver,) = [each for each in bed.nodes["n1"].processes() if "train" in each.cmdline()[1:3]]
            driver.kill()
            left, seconds = _left_after(bed.left)
            found.append({"by": "driver", "seconds": seconds, "left": left})
            console.print(f"  {number + 1} of {count}: nothing left after {seconds:.1f} s", style="dim")
            bed.sweep()
    return _left_found(found, ["driver"])


TRAIN = ("shoal", "train", "CartPole-v1", *SMALL, "--stop", "training_iteration=1000000")


def _ours(bed: Bed) -> dict[str, list[str]]:
    """What is left on the nodes, but for the files of Open MPI's own that its mpirun would have removed."""
    found = {
        name: [thing for thing in things if not thing.startswith("/tmp/ompi.")] for name, things in bed.left().items()
    }
    return {name: things for name, things in found.items() if things}


def _running(bed: Bed) -> dict[str, list[str]]:
    """The processes on the nodes, without files."""
    found = {name: [str(process.pid) for process in node.processes()] for name, node in bed.nodes.items()}
    return {name: pids for name, pids in found.items() if pids}


def _left_after(left: Callable[[], dict[str, list[str]]]) -> tuple[dict[str, list[str]], float]:
    """What is left after ten seconds, and when nothing was, a minute at most."""
    began, at_the_bar = monotonic(), None
    while True:
        found, now = left(), monotonic()
        if at_the_bar is None and now - began >= BAR_S:
            at_the_bar = found
        if not found or now - began > CLEAN_S:
            return at_the_bar or {}, now - began
        sleep(LOOK_S)


def _left_found(found: Sequence[dict[str, Any]], kinds: Sequence[str]) -> Found:
    """The figure of what was left, for each kind of what was killed."""
    clean = sum(not each["left"] for each in found)
    slowest = [(kind, max((each["seconds"] for each in found if each["by"] == kind), default=0.0)) for kind in kinds]
    told = ", ".join(f"{kind}: {seconds:.1f} s" for kind, seconds in slowest)
    figure = f"nothing left after 10 s in {clean} of {len(found)}, at most {told}"
    return Found(len(found), figure, [all_of("nothing left after 10 s", clean, len(found))], more={"kills": found})
