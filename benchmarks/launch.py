"""How fast a cluster comes and goes: `srun shoal launch` on three nodes, bare `ray start` and `ray symmetric-run`.

The nodes are the test bed's (tests/cluster/bed.py), with real Slurm; needs root and the packages in .ci/run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from peers import ROOT
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from bed import Bed, Node, Running
from daemons import start_slurm, wait_until_idle

RAY_SCRIPT = Path(str(find_spec("ray").origin)).with_name("scripts") / "scripts.py"
LONGEST_S = 180.0
CLEAN_S = 30.0  # after which what is left counts as left
TEARDOWN_S, NAMED_S = 3.0, 5.0  # the bars

Figures = dict[str, float]


def moment(path: Path) -> float:
    """When a process wrote the time to this file."""
    return float(path.read_text())


def stamping(folder: Path) -> list[str]:
    """A command that only tells when it ran."""
    return ["sh", "-c", f"date +%s.%N >{folder}/ran"]


def seconds_until_clean(bed: Bed, since: float) -> Figures:
    """How long it took until nothing was left on any node, or how much was left after all."""
    ended = time.time()
    while (left := bed.left()) and time.time() - ended < CLEAN_S:
        time.sleep(0.02)
    if left:
        return {"leftovers": float(sum(len(things) for things in left.values()))}
    return {"teardown_s": time.time() - since, "leftovers": 0.0}


def by_srun(bed: Bed, folder: Path, tasks: str, words: list[str]) -> Figures:
    """One step on three nodes: until the command ran, until the step ended, until all was clean."""
    started = time.time()
    running = bed.login.run(["srun", "-N3", tasks, *words, "--", *stamping(folder)], within_s=LONGEST_S, check=False)
    step_ended = time.time()
    if running.wait() != 0:
        console.print(running.told(), style="red", markup=False)
        return {"succeeded": 0.0}
    ran = moment(folder / "ran")
    times = {"ready_s": ran - started, "step_end_s": step_ended - ran}
    return {"succeeded": 1.0, **times, **seconds_until_clean(bed, ran)}


def shoal_launch(bed: Bed, folder: Path) -> Figures:
    """Six ranks on three nodes."""
    return by_srun(bed, folder, "-n6", ["shoal", "launch"])


def symmetric_run(bed: Bed, folder: Path) -> Figures:
    """Ray's own; one rank per node, since it does not put up with two."""
    words = ["ray", "symmetric-run", "--address", "n1:6379", "--min-nodes", "3", "--disable-usage-stats"]
    return by_srun(bed, folder, "-n3", words)


def bare_ray_start(bed: Bed, folder: Path) -> Figures:  # noqa: ARG001
    """The head, then the two others at once, typed on the nodes themselves; ended by killing all of it."""
    head, *others = bed.nodes.values()
    words = ["ray", "start", "--disable-usage-stats"]
    started = time.time()
    own = [f"--node-ip-address={head.address}", "--port=6379", "--include-dashboard=false"]
    head.run([*words, "--head", *own], RAY_AUTH_MODE="disabled", within_s=LONGEST_S)
    starting = [_join(node, words, head.address) for node in others]
    for running in starting:
        if running.wait(LONGEST_S) != 0:
            raise RuntimeError(running.told())
    return {"ready_s": time.time() - started}


def _join(node: Node, words: list[str], head: str) -> Running:
    own = [f"--address={head}:6379", f"--node-ip-address={node.address}"]
    return node.popen([*words, *own], RAY_AUTH_MODE="disabled")


def failing_node(bed: Bed, folder: Path) -> Figures:
    """A node whose Ray fails: from its failure until the launcher names it, and until it has ended."""
    told = f"import time\nopen({str(folder / 'failed')!r}, 'w').write(str(time.time()))\nraise SystemExit('broken')\n"
    (folder / "scripts.py").write_text(told)
    n2 = bed.nodes["n2"]
    n2.run(["mount", "--bind", str(folder / "scripts.py"), str(RAY_SCRIPT)])
    try:
        running = bed.login.popen(["srun", "-N3", "-n6", "shoal", "launch", "--", "true"])
        deadline = time.time() + LONGEST_S
        while "n2 could not start Ray" not in running.err:
            if time.time() > deadline or running.ended:
                raise RuntimeError(running.told())
            time.sleep(0.02)
        named = time.time()
        code = running.wait(LONGEST_S)
    finally:
        n2.run(["umount", str(RAY_SCRIPT)])
    failed = moment(folder / "failed")
    return {"named_s": named - failed, "exit_code": float(code), **seconds_until_clean(bed, failed)}


CASES: dict[str, Callable[[Bed, Path], Figures]] = {
    "shoal launch": shoal_launch,
    "ray start": bare_ray_start,
    "ray symmetric-run": symmetric_run,
    "a node that fails": failing_node,
}


def measure(bed: Bed, counts: dict[str, int]) -> dict[str, list[Figures]]:
    """Each case so often, interleaved, the next when the nodes are as they were."""
    found: dict[str, list[Figures]] = {name: [] for name in CASES}
    for repeat in range(max(counts.values())):
        for name, case in CASES.items():
            if repeat >= counts[name]:
                continue
            folder = bed.folder / f"{name.replace(' ', '-')}-{repeat}"
            folder.mkdir()
            found[name].append(case(bed, folder))
            shown = ", ".join(f"{key} {value:.2f}" for key, value in found[name][-1].items())
            console.print(f"  {repeat + 1}/{counts[name]} {name}: {shown}", style="dim")
            bed.sweep()
            wait_until_idle(bed, list(bed.nodes))
    return found


def spreads(runs: dict[str, list[Figures]]) -> dict[str, dict[str, Any]]:
    """Median, lowest and highest of each figure, over the runs that have it."""
    return {
        name: {key: spread([run[key] for run in figures if key in run]) for key in dict.fromkeys(chain(*figures))}
        for name, figures in runs.items()
    }


def bars_of(runs: dict[str, list[Figures]], found: dict[str, dict[str, Any]]) -> list[Bar]:
    """The limits that every run has to keep, and the one for the ratio of the medians."""
    ours, failing = runs["shoal launch"], runs["a node that fails"]
    ratio = found["shoal launch"]["ready_s"]["median"] / found["ray start"]["ready_s"]["median"]
    ended = [run for run in ours if run.get("teardown_s", CLEAN_S) < TEARDOWN_S]
    named = [run for run in failing if run["named_s"] < NAMED_S and run["leftovers"] == 0]
    told = f"runs of {{}} that are ready and leave nothing {TEARDOWN_S:g} s after the command"
    return [
        Bar("3 nodes, 6 ranks, ready / bare ray start", ratio, 2, at_least=False, unit="x"),
        Bar(told.format(len(ours)), len(ended), len(ours), at_least=True),
        Bar(f"of {len(failing)} failed nodes, named within {NAMED_S:g} s", len(named), len(failing), at_least=True),
    ]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    counts = {
        "shoal launch": repeats,
        "ray start": repeats,
        "ray symmetric-run": min(repeats, 3),  # more than a minute each
        "a node that fails": (repeats + 1) // 2,
    }
    if os.geteuid() != 0:
        raise SystemExit("the nodes are namespaces, which only root can make")
    record = Record("launch", ("shoal",), {"nodes": 3, "ranks": 6, "repeats": counts})
    with tempfile.TemporaryDirectory(prefix="bed-") as folder, Bed(Path(folder)) as bed:
        start_slurm(bed)
        runs = measure(bed, counts)
    found = spreads(runs)
    table = Table("what", "median (low..high)", title="Three nodes on one machine")
    for name, rows in found.items():
        for key, value in rows.items():
            table.add_row(f"{name}, {key}", "{:.2f} ({:.2f}..{:.2f})".format(*value.values()))
    console.print(table)
    bars = bars_of(runs, found)
    show_bars(bars)
    if not options.quick:
        record.keep({"spread": found, "runs": runs}, bars)


if __name__ == "__main__":
    main()
