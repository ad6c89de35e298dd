"""The time of an iteration for 1 to 8192 workers, with one learner and with one per node: a model, and runs beside it.

Weak scaling: every worker gives the same fragment, so rows grow with workers, and a pass always has the same number of
minibatches. Synchronous PPO on simulators that wait. With W workers on H hosts, L learners, E passes of K minibatches,
R rows in all, P bytes of parameters, each term with costs that are measured by themselves:

    messages    round + H host + W driver     weights out, one answer of each host: spent in the driver's process
                + W / H hosted                what a host's actor does for its workers before it can answer
    sample      steps x step                  a simulator waits; its worker has a core of its own
    hand over   hand + L learner              only where L > 1: the driver's messages to learners, new weights back
    merge       W / L (fragment + MB x copy)  at each learner
    learn       R / L (row + E row_pass) + E K minibatch
    all-reduce  E K hops(L) (hop + P byte)    only where L > 1; hops(L) = log2 L, rounded up

On a machine with C cores that all processes share, messages take at least W (driver + hosted + worker) / C, sampling at
least W busy / C, and merging and learning take L / C times as long where L > C: so it is held against runs here, of up
to 64 workers on up to four hosts, which are nodes of Ray on this machine.
On paper every process has its core; costs are those of this machine, whose processes wake slowly, and the network
between nodes is taken to be no slower than its loopback.

The start of many hosts is a model of the same kind. What each host does by itself (a host's actor, its fork server, its
workers) takes as long as on one host. What grows with their number is spent in two processes: Ray's head, where nodes
join, places are reserved and actors made, and the driver. Their processor time for each node and host comes from starts
of up to eight hosts here, that for each worker's place from reservations on one node, which grow with the square of the
number too. Agents that meet their head are measured by rendezvous.py.
"""

from __future__ import annotations

import argparse
import json
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
LAYOUTS = [  # workers, learners, hosts
    *((1, 1, 1), (4, 1, 1), (16, 1, 1), (32, 1, 1), (64, 1, 1), (16, 1, 2), (16, 1, 4), (64, 1, 2), (64, 1, 4)),
    *((4, 2, 1), (16, 2, 2), (64, 2, 2), (16, 4, 4), (64, 4, 4)),
]
CORES = 2
TURNS = 2  # of the runs
STARTS = (1, 2, 4, 8)  # hosts
RESERVED = (250, 500, 1000, 2000)  # workers' places
STARTED_HOSTS = (128, 512, 1000)
PAR_RL_S, PAR_RL_HOSTS = 803.0, 512  # what its authors measured until the first sample
BYTES = np.dtype(np.float32).itemsize

Found = dict[str, Any]
Layout = tuple[int, int, int]


@dataclass(frozen=True)
class Costs:
    """Seconds of each thing that an iteration does."""

    round: float  # of messages
    host: float  # of the driver, for each host
    driver: float  # for each worker
    hosted: float  # its host's work for a message
    worker: float  # its own
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
    """Seconds of each part of an iteration; with `cores`, all processes share them.

    Messages take as long as the driver and one host have to do for them, one after the other, or as all processes
    together have for the cores that they share.
    """
    c, epochs, minibatches = costs, int(WORK["epochs"]), int(WORK["minibatches"])
    crowded = max(1.0, learners / cores)
    rows = workers * ROWS / learners
    several = learners > 1
    hops = ceil(log2(learners))
    in_turn = workers * c.driver + workers / hosts * c.hosted
    together = workers * (c.driver + c.hosted + c.worker) / cores
    return {
        "messages": c.round + hosts * c.host + max(in_turn, together),
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
    emulated = ((2, 8),) if quick else ((4, 32), (32, 32), (128, 32), (256, 32), (64, 4))
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
    hosted = fitted([((1, n), n * each["host_cpu_s"]) for n, each in rounds.items()])[1]
    # A round takes longer than what is done for it: processes have to wake.
    done = {n: n * max(driver + hosted, (driver + hosted + worker) / CORES) for n in rounds}
    least = [each["round_s"] - host - done[n] for n, each in rounds.items()]
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
        hosted=hosted,
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


def measure_runs(quick: bool) -> dict[Layout, Found]:
    """Whole runs of every layout that this machine can carry, in turns; the median of each figure."""
    seen: dict[Layout, list[Found]] = {}
    for _ in range(1 if quick else TURNS):
        for workers, learners, hosts in [(1, 1, 1), (2, 1, 2)] if quick else LAYOUTS:
            console.print(f"  {workers} workers, {learners} learners, {hosts} hosts", style="dim")
            work = {**WORK, "iterations": 2 if quick else 6}
            layout = {"num_workers": workers, "num_learners": learners, "num_hosts": hosts}
            answer = ask("shoal", "run", "scaling", **work, **layout).answer
            seen.setdefault((workers, learners, hosts), []).append(answer)
    return {
        layout: {key: float(np.median([answer[key] for answer in answers])) for key in answers[0]}
        | {"turns_s": [answer["iteration_s"] for answer in answers]}
        for layout, answers in seen.items()
    }


def compared(costs: Costs, runs: dict[Layout, Found]) -> list[Found]:
    """Every run beside the model of it."""
    rows = []
    for (workers, learners, hosts), run in runs.items():
        parts = iteration(costs, workers, learners, hosts, cores=CORES)
        whole = sum(parts.values())
        beyond = run["iteration_s"] - run["env_s"] - run["policy_s"]
        rows.append(
            {
                "workers": workers,
                "learners": learners,
                "hosts": hosts,
                "run_s": run["iteration_s"],
                "model_s": whole,
                "error": whole / run["iteration_s"] - 1,
                "beyond_sampling_s": beyond,
                "beyond_sampling_model_s": whole - parts["sample"],
                "turns_s": run["turns_s"],
                "parts_s": {name: run[f"{name}_s"] for name in ("env", "policy", "learn", "communicate")},
                "parts_model_s": parts,
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


def measure_starts(quick: bool) -> Found:
    """Starts of some hosts, with one worker each, and of one with as many as it would have; and reservations."""
    found: Found = {"hosts": {}, "places": {}}
    for hosts in (1, 2) if quick else STARTS:
        console.print(f"  start of {hosts} hosts", style="dim")
        work = {"num_hosts": hosts, "workers_per_host": 1}
        found["hosts"][str(hosts)] = ask("shoal", "first_sample", "scaling", **work).answer
    console.print("  start of one whole host", style="dim")
    work = {"num_hosts": 1, "workers_per_host": 2 if quick else PER_NODE}
    found["whole"] = ask("shoal", "first_sample", "scaling", **work).answer
    for bundles in (8, 16, 32) if quick else RESERVED:
        found["places"][str(bundles)] = ask("shoal", "places", "scaling", bundles=bundles).answer
    return found


def starts_on_paper(found: Found) -> list[Found]:
    """Seconds of each part of a start of very many hosts."""
    some = {int(hosts): each for hosts, each in found["hosts"].items()}
    several = {hosts: each for hosts, each in some.items() if hosts > 1}  # Ray's head is another one there
    node = fitted([((1, hosts), each["nodes_gcs_s"]) for hosts, each in several.items()])[1]
    head = fitted([((1, hosts), each["gcs_s"]) for hosts, each in several.items()])[1]
    driver = fitted([((1, hosts), each["driver_s"]) for hosts, each in some.items()])[1]
    reserved = {int(bundles): each for bundles, each in found["places"].items()}
    place, square = fitted([((n, n * n), each["gcs_s"]) for n, each in reserved.items()])
    looked = fitted([((1, n), each["driver_s"]) for n, each in reserved.items()])[1]
    rows = []
    for hosts in STARTED_HOSTS:
        workers = hosts * PER_NODE
        parts = {
            "one host": found["whole"]["first_s"],
            "nodes join": hosts * node,
            "places": workers * (place + looked) + workers**2 * square,
            "actors": hosts * head,
            "driver": hosts * driver,
        }
        rows.append({"hosts": hosts, "workers": workers, "first_sample_s": sum(parts.values()), **parts})
    return rows


def show_starts(rows: list[Found]) -> None:
    """Print the model of starts."""
    table = Table(*rows[0], title="Seconds until the first sample, on paper")
    for row in rows:
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    console.print(f"PAR-RL: {PAR_RL_S:g} s with {PAR_RL_HOSTS}, as its authors say")


def show(checks: list[Found], paper: list[Found]) -> None:
    """Print runs beside the model, and the model beyond them."""
    table = Table(
        "workers", "learners", "hosts", "run, s", "model, s", "off by", "beyond sampling", title="Runs and the model"
    )
    for row in checks:
        beyond = f"{row['beyond_sampling_s']:.3f} / {row['beyond_sampling_model_s']:.3f}"
        cells = (f"{row['run_s']:.3f}", f"{row['model_s']:.3f}", f"{row['error']:+.0%}", beyond)
        table.add_row(str(row["workers"]), str(row["learners"]), str(row["hosts"]), *cells)
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


def starts(options: argparse.Namespace) -> None:
    """The start of very many hosts."""
    record = Record("scaling-start", ["shoal"], {"workers_per_node": PER_NODE})
    found = measure_starts(options.quick)
    rows = starts_on_paper(found)
    show_starts(rows)
    thousand = next(row for row in rows if row["hosts"] == 1000)["first_sample_s"]
    bars = [Bar("first sample on 1000 hosts, beside PAR-RL's 512", thousand, PAR_RL_S, at_least=False, unit=" s")]
    show_bars(bars)
    if not options.quick:
        record.keep({"on_paper": rows, "measured": found}, bars)


def iterations(options: argparse.Namespace, again: bool = False) -> None:
    """The time of an iteration; `again`: only the runs, beside the costs that are kept."""
    record = Record("scaling", ["shoal"], {**WORK, "workers_per_node": PER_NODE})
    kept_file = RESULTS / "scaling.json"
    found = json.loads(kept_file.read_text())["results"]["measured"] if again else measure(options.quick)
    runs = measure_runs(options.quick)
    costs = costs_of(found, runs[1, 1, 1])
    checks, paper = compared(costs, runs), on_paper(costs)
    show(checks, paper)
    worst = max(abs(row["error"]) for row in checks)
    bars = [Bar("largest error of the model", worst, 0.25, at_least=False), *scale_bars(paper)]
    show_bars(bars)
    if not options.quick:
        plot(checks, paper)
        kept = {"runs": checks, "on_paper": paper, "costs": asdict(costs), "measured": found}
        record.keep(kept, bars)


def main() -> None:
    """Measure, fit, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="iteration, start; both unless named; or runs")
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    options = parser.parse_args()
    parts = options.parts or ["iteration", "start"]
    if unknown := set(parts) - {"iteration", "runs", "start"}:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are iteration, runs and start")
    if "iteration" in parts or "runs" in parts:
        iterations(options, again="iteration" not in parts)
    if "start" in parts:
        starts(options)


if __name__ == "__main__":
    main()
