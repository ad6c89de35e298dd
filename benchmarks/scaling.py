"""The time of an iteration for 1 to 8192 workers, with one learner and with one per node: a model, and runs beside it.

Weak scaling: every worker gives the same fragment, so rows grow with workers, and a pass always has the same number of
minibatches. Synchronous PPO on simulators that wait. With W workers on H hosts, L learners, E passes of K minibatches,
R rows in all, P bytes of parameters, each term with costs that are measured by themselves:

    messages    round + H host + W driver     weights out, summaries back; both are spent in the driver's process
    sample      steps x step                  a simulator waits; its worker has a core of its own
    hand over   hand + L learner              only where L > 1: the driver's messages to learners, new weights back
    merge       W / L (fragment + MB x copy)  at each learner
    learn       R / L (row + E row_pass) + E K minibatch
    all-reduce  E K hops(L) (hop + P byte)    only where L > 1; hops(L) = log2 L, rounded up

On a machine with C cores that all processes share, messages take W max(driver, (driver + worker) / C), sampling takes
at least W busy / C, and merging and learning take L / C times as long where L > C: so it is held against runs here.
On paper every process has its core; costs are those of this machine, whose processes wake slowly, and the network
between nodes is taken to be no slower than its loopback.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import Any

import numpy as np
from peers import ask
from record import RESULTS, Bar, Record, console, show_bars
from rich.table import Table

WORK = {"num_envs": 16, "steps": 50, "sleep_s": 0.01, "epochs": 4, "minibatches": 8}
ROWS = WORK["num_envs"] * WORK["steps"]  # of one worker
PER_NODE = 32  # workers
PAPER = [2**k for k in range(4, 14)]
LAYOUTS = [(1, 1), (4, 1), (16, 1), (32, 1), (4, 2), (16, 2), (32, 2), (4, 4), (16, 4), (32, 4)]
CORES = 2
BYTES = np.dtype(np.float32).itemsize

Found = dict[str, Any]


@dataclass(frozen=True)
class Costs:
    """Seconds of each thing that an iteration does."""

    round: float  # of messages
    host: float  # of the driver, for each host
    driver: float  # for each worker
    worker: float  # its own work for a message
    fragment: float  # to fetch
    megabyte: float  # to copy
    row: float  # values and advantages
    row_pass: float  # forward, gradient, backward
    minibatch: float
    hop: float
    byte: float
    hand: float
    learner: float
    step: float  # of all simulators of a worker
    busy: float  # of that fragment, on the worker's core
    fragment_mb: float
    parameters: int


def iteration(
    costs: Costs, workers: int, learners: int, hosts: int = 1, cores: float = float("inf")
) -> dict[str, float]:
    """Seconds of each part of an iteration; with `cores`, all processes share them."""
    c, epochs, minibatches = costs, int(WORK["epochs"]), int(WORK["minibatches"])
    crowded = max(1.0, learners / cores)
    rows = workers * ROWS / learners
    several = learners > 1
    hops = ceil(log2(learners))
    return {
        "messages": c.round + hosts * c.host + workers * max(c.driver, (c.driver + c.worker) / cores),
        "sample": max(WORK["steps"] * c.step, workers * c.busy / cores),
        "hand over": several * (c.hand + learners * c.learner),
        "merge": crowded * workers / learners * (c.fragment + c.fragment_mb * c.megabyte),
        "learn": crowded * (rows * (c.row + epochs * c.row_pass) + epochs * minibatches * c.minibatch),
        "all-reduce": several * epochs * minibatches * hops * (c.hop + c.parameters * BYTES * c.byte),
    }


def fitted(rows: list[tuple[tuple[float, ...], float]]) -> list[float]:
    """Non-negative costs that explain measured times from counts, with the least relative error."""
    counts = np.array([count for count, _ in rows], float)
    times = np.array([time for _, time in rows])
    used = list(range(counts.shape[1]))
    while True:
        costs = np.zeros(counts.shape[1])
        costs[used] = np.linalg.lstsq(counts[:, used] / times[:, None], np.ones(len(times)), rcond=None)[0]
        if (costs >= 0).all():
            return [float(cost) for cost in costs]
        used.remove(int(costs.argmin()))


def measure(quick: bool) -> Found:
    """Each cost's own measurements."""
    repeats = 3 if quick else 15
    counts = (1, 2) if quick else (1, 4, 8, 16, 32)
    emulated = ((2, 8),) if quick else ((4, 32), (32, 32), (128, 32), (64, 4))
    learners = (2,) if quick else (2, 4)
    many = (4,) if quick else (8, 64, 256)
    sizes = [9000, 50_000] if quick else [1000, 9000, 20_000, 50_000]
    updates = [(1600, 8, 4), (1600, 8, 1), (6400, 8, 4), (6400, 32, 4), (25_600, 8, 1), (25_600, 8, 4)]
    found: Found = {}
    for name, task, cases in (
        ("rounds", "rounds", {str(n): {"num_workers": n, "num_envs": WORK["num_envs"]} for n in counts}),
        (
            "driver",
            "driver",
            {
                f"{hosts} {n}": {"num_hosts": hosts, "num_workers": n, "num_envs": WORK["num_envs"]}
                for hosts, n in emulated
            },
        ),
        (
            "update",
            "update",
            {
                f"{rows} {split} {epochs}": {"rows": rows, "num_envs": 16, "minibatches": split, "epochs": epochs}
                for rows, split, epochs in updates
            },
        ),
        ("all_reduce", "all_reduce", {str(n): {"num_learners": n, "sizes": sizes, "work_s": 7e-4} for n in learners}),
        ("hand_over", "hand_over", {"2": {"num_learners": 2}}),
        ("many_learners", "many_learners", {str(n): {"num_learners": n} for n in many}),
    ):
        found[name] = {}
        for label, arguments in cases.items():
            console.print(f"  {name} {label}", style="dim")
            more = {"all_reduce": 40 * repeats, "update": max(3, repeats // 2)}.get(name, repeats)
            found[name][label] = ask("shoal", task, "scaling", **arguments, repeats=more).answer
    return found


def costs_of(found: Found, alone: Found) -> Costs:
    """The model's costs, from their measurements and, for the simulator, from a run with one worker."""
    rounds = {int(count): each for count, each in found["rounds"].items()}
    layouts = {(1, n): each for n, each in rounds.items()}
    for label, each in found["driver"].items():
        hosts, n = map(int, label.split())
        layouts[hosts, n] = each
    drivers = [((1, hosts, hosts * n), each["ask_s"] + each["take_s"]) for (hosts, n), each in layouts.items()]
    start, host, driver = fitted(drivers)
    worker = float(np.median([each["worker_cpu_s"] for each in rounds.values()]))
    # A round takes longer than the driver's part of it: processes have to wake.
    least = [each["round_s"] - host - n * max(driver, (driver + worker) / CORES) for n, each in rounds.items()]
    merges = [((n, float(size)), time) for n, each in rounds.items() if n > 1 for size, time in each["merge_s"].items()]
    fragment, megabyte = fitted(merges)
    largest = max(float(size) / n for (n, size), _ in merges)
    updates = []
    for label, each in found["update"].items():
        rows, split, epochs = map(int, label.split())
        updates.append(((rows, rows * epochs, split * epochs), each["update_s"]))
    row, row_pass, minibatch = fitted(updates)
    parameters = next(iter(found["update"].values()))["parameters"]
    # Of two, which have a core each: more of them here would wait for cores, which the model counts elsewhere.
    sums = found["all_reduce"]["2"]["sum_s"]
    hop, byte = fitted([((1, int(size) * BYTES), time) for size, time in sums.items()])
    first, learner = fitted([((1, int(n)), each["hand_s"]) for n, each in found["many_learners"].items()])
    # An update of nothing has some sums of its own beside those of its one minibatch.
    hand = max(found["hand_over"]["2"]["learn_s"] - 5 * hop - 2 * learner, first)
    return Costs(
        round=max(float(np.median(least)), start),
        host=host,
        driver=driver,
        worker=worker,
        fragment=fragment,
        megabyte=megabyte,
        row=row,
        row_pass=row_pass,
        minibatch=minibatch,
        hop=hop,
        byte=byte,
        hand=hand,
        learner=learner,
        step=(alone["env_s"] + alone["policy_s"]) / WORK["steps"],
        busy=alone["worker_cpu_s"],
        fragment_mb=largest * WORK["steps"] / 64,
        parameters=parameters,
    )


def measure_runs(quick: bool) -> dict[tuple[int, int], Found]:
    """Whole runs of every layout that this machine can carry."""
    found = {}
    for workers, learners in [(1, 1), (2, 2)] if quick else LAYOUTS:
        console.print(f"  {workers} workers, {learners} learners", style="dim")
        work = {**WORK, "iterations": 2 if quick else 6}
        layout = {"num_workers": workers, "num_learners": learners}
        found[workers, learners] = ask("shoal", "run", "scaling", **work, **layout).answer
    return found


def compared(costs: Costs, runs: dict[tuple[int, int], Found]) -> list[Found]:
    """Every run beside the model of it."""
    rows = []
    for (workers, learners), run in runs.items():
        parts = iteration(costs, workers, learners, cores=CORES)
        whole = sum(parts.values())
        beyond = run["iteration_s"] - run["env_s"] - run["policy_s"]
        rows.append(
            {
                "workers": workers,
                "learners": learners,
                "run_s": run["iteration_s"],
                "model_s": whole,
                "error": whole / run["iteration_s"] - 1,
                "beyond_sampling_s": beyond,
                "beyond_sampling_model_s": whole - parts["sample"],
            }
        )
    return rows


def on_paper(costs: Costs) -> list[Found]:
    """The iteration for up to 8192 workers, with one learner and with one per node."""
    rows = []
    for workers in PAPER:
        nodes = ceil(workers / PER_NODE)
        one = iteration(costs, workers, 1, nodes)
        each = iteration(costs, workers, nodes, nodes)
        rows.append(
            {
                "workers": workers,
                "learners": nodes,
                "one_learner_s": sum(one.values()),
                "learner_per_node_s": sum(each.values()),
                "one_learner": one,
                "learner_per_node": each,
            }
        )
    return rows


def scale_bars(paper: list[Found]) -> list[Bar]:
    """What sixteen times the workers bring, and what very many cost beyond their sampling; a learner per node."""
    rows = {row["workers"]: row for row in paper}
    gain = 2048 / 128 * rows[128]["learner_per_node_s"] / rows[2048]["learner_per_node_s"]
    beyond = rows[8192]["learner_per_node_s"] - rows[8192]["learner_per_node"]["sample"]
    return [
        Bar("2048 workers / 128, throughput", gain, 12, at_least=True, unit="x"),
        Bar("8192 workers, beyond sampling", beyond, 1.5, at_least=False, unit=" s"),
    ]


def show(checks: list[Found], paper: list[Found]) -> None:
    """Print runs beside the model, and the model beyond them."""
    table = Table("workers", "learners", "run, s", "model, s", "off by", "beyond sampling", title="Runs and the model")
    for row in checks:
        beyond = f"{row['beyond_sampling_s']:.3f} / {row['beyond_sampling_model_s']:.3f}"
        cells = (f"{row['run_s']:.3f}", f"{row['model_s']:.3f}", f"{row['error']:+.0%}", beyond)
        table.add_row(str(row["workers"]), str(row["learners"]), *cells)
    console.print(table)
    names = list(paper[0]["learner_per_node"])
    table = Table("workers", "1 learner, s", "learners", "one per node, s", *names, title="On paper")
    for row in paper:
        parts = (f"{row['learner_per_node'][name]:.3f}" for name in names)
        whole = f"{row['one_learner_s']:.2f}", str(row["learners"]), f"{row['learner_per_node_s']:.2f}"
        table.add_row(str(row["workers"]), *whole, *parts)
    console.print(table)


def plot(checks: list[Found], paper: list[Found]) -> None:
    """Draw both layouts over the number of workers, with the runs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    workers = [row["workers"] for row in paper]
    axis.plot(workers, [row["one_learner_s"] for row in paper], label="model, one learner")
    axis.plot(workers, [row["learner_per_node_s"] for row in paper], label=f"model, a learner per {PER_NODE} workers")
    for learners, marker in ((1, "o"), (2, "s"), (4, "^")):
        here = [row for row in checks if row["learners"] == learners]
        word = "learners" if learners > 1 else "learner"
        label = f"runs on {CORES} cores, {learners} {word}"
        axis.scatter([row["workers"] for row in here], [row["run_s"] for row in here], marker=marker, s=18, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(xlabel=f"workers, {ROWS} steps each", ylabel="seconds of an iteration")
    axis.legend(fontsize=8)
    figure.savefig(RESULTS / "scaling.png", dpi=90)
    pyplot.close(figure)


def main() -> None:
    """Measure, fit, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    options = parser.parse_args()
    record = Record("scaling", ["shoal"], {**WORK, "workers_per_node": PER_NODE})
    found = measure(options.quick)
    runs = measure_runs(options.quick)
    costs = costs_of(found, runs[1, 1])
    checks, paper = compared(costs, runs), on_paper(costs)
    show(checks, paper)
    worst = max(abs(row["error"]) for row in checks)
    bars = [Bar("largest error of the model", worst, 0.25, at_least=False), *scale_bars(paper)]
    show_bars(bars)
    if not options.quick:
        plot(checks, paper)
        kept = {"runs": checks, "on_paper": paper, "costs": asdict(costs), "measured": found}
        record.keep(kept, bars)


if __name__ == "__main__":
    main()
