"""What many workers bring: PPO and sampling against one process, waiting simulators, sudden deaths, start-up, memory.

Each case runs in a process of its own, one after another; repeats are interleaved. Every part keeps a file of its own,
`results/workers-PART.json`, with the commit and the machine of its moment, so that parts can be run one at a time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import ask, shoal_command, source_of
from record import RESULTS, Bar, Record, console, show_bars, spread
from rich.table import Table

WORK = {"batch": 4096, "minibatch": 256, "epochs": 10}
FIRST = {"batch": 2048, "minibatch": 256, "epochs": 10, "num_envs": 16}  # what `--num-workers 2` comes to
COUNTS = (1, 4, 8, 16, 32)
WAITS_S, LONG_WAITS_S = 0.01, 0.1  # of a simulator, at every step
MANY = 256  # processes on this machine, whose simulators wait longer: 25,600 steps/s would not fit on two cores
BEFORE = "2cb774a"  # the last commit with a Ray actor for each worker
STRUCK = {"num_workers": 4, "steps": 100, "sleep_s": 0.005, "every_s": 5.0}
SIMULATORS = Path(__file__).resolve().parent / "runners" / "simulators.py"

RATIO = "2 workers / in-process"
INSIDE, SYNC, ASYNC = "shoal, in-process", "shoal, 2 workers", "shoal, 2 workers, sample_async"
COMPILED = ", compiled kernel"
PPO_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    INSIDE: ("shoal", {"num_envs": 64}),
    SYNC: ("shoal", {"num_envs": 64, "num_workers": 2}),
    ASYNC: ("shoal", {"num_envs": 64, "num_workers": 2, "sample_async": True}),
    INSIDE + COMPILED: ("shoal", {"num_envs": 64, "kernel": "compiled"}),
    ASYNC + COMPILED: ("shoal", {"num_envs": 64, "num_workers": 2, "sample_async": True, "kernel": "compiled"}),
    "SB3, DummyVecEnv 32": ("sb3", {"num_envs": 32}),
    "SB3, DummyVecEnv 64": ("sb3", {"num_envs": 64}),
    "RLlib, 2 runners x 16": ("rllib", {"num_envs": 32, "num_env_runners": 2}),
    "RLlib, 2 runners x 32": ("rllib", {"num_envs": 64, "num_env_runners": 2}),
}

Found = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One question: how it is measured, the bars of its answer, and who has to be installed."""

    measure: Callable[[int, bool], Found]
    bars: Callable[[Found], list[Bar]]
    who: tuple[str, ...] = ("shoal",)


def measure_ppo(repeats: int, quick: bool) -> Found:
    """Steps per second of PPO on CartPole-v1, the same work for all, 64 environments in all.

    `gain`: of two workers with `sample_async` over one process, of the same turn.
    """
    warmup, iterations = (1, 2) if quick else (3, 12)
    seen: dict[str, list[Found]] = {label: [] for label in PPO_CASES}
    for repeat in range(repeats):
        for label, (who, arguments) in PPO_CASES.items():
            console.print(f"  {repeat + 1}/{repeats} {label}", style="dim")
            more = 1 if quick or who != "shoal" else 4  # what is quick is measured for longer
            times = {"warmup": warmup, "iterations": iterations * more}
            seen[label].append(ask(who, "throughput", **WORK, **arguments, **times).answer)
    found: Found = {
        label: {key: spread([each[key] for each in answers]) for key in ("overall", "learning")}
        for label, answers in seen.items()
    }
    for kernel in ("", COMPILED):
        pairs = zip(seen[INSIDE + kernel], seen[ASYNC + kernel], strict=True)
        found[ASYNC + kernel]["gain"] = spread([both["overall"] / one["overall"] for one, both in pairs])
    return found


def ppo_bars(found: Found) -> list[Bar]:
    """Both layouts against one process, and the quicker one against the peers' best.

    With NumPy the learner alone takes more than half of one process's time, and nothing can be quicker than it.
    """
    rates = {label: row["overall"]["median"] for label, row in found.items()}
    best = {who: max(rate for label, rate in rates.items() if label.startswith(who)) for who in ("SB3", "RLlib")}
    gain, compiled = found[ASYNC]["gain"]["median"], found[ASYNC + COMPILED]["gain"]["median"]
    most = found[INSIDE]["learning"]["median"] / rates[INSIDE]
    return [
        Bar("2 workers / in-process", rates[SYNC] / rates[INSIDE], 0.9, at_least=True, unit="x"),
        Bar("2 workers, sample_async / in-process", gain, 1.6, at_least=True, unit="x"),
        Bar("2 workers, sample_async / in-process, compiled kernel", compiled, 1.6, at_least=True, unit="x"),
        Bar("2 workers, sample_async: of what the learner alone allows", gain / most, 0.9, at_least=True),
        Bar("2 workers, sample_async / SB3's best", rates[ASYNC] / best["SB3"], 4, at_least=True, unit="x"),
        Bar("2 workers, sample_async / RLlib's 2 runners", rates[ASYNC] / best["RLlib"], 7, at_least=True, unit="x"),
    ]


def measure_pong(repeats: int, quick: bool) -> Found:
    """Steps per second of sampling Pong from its RAM, 16 environments in all; in turns with no and with two workers."""
    work = {"num_envs": 16, "steps": 32 if quick else 256, "rounds": 1 if quick else 10}
    labels = {"inside": INSIDE, "workers": SYNC, "ratio": RATIO}
    seen: dict[str, list[float]] = {"bare, one process": [], "bare, two at once": [], INSIDE: [], SYNC: [], RATIO: []}
    for _ in range(repeats):
        for label, processes in (("bare, one process", 1), ("bare, two at once", 2)):
            ended = ask("shoal", "bare", "shoal_workers", processes=processes, num_envs=16, seconds=1 if quick else 5)
            seen[label].append(ended.answer["sampling"])
        game = {"env": "ALE/Pong-v5", "env_config": {"obs_type": "ram"}}
        answer = ask("shoal", "paired", "shoal_workers", **game, **work, num_workers=2).answer
        for key, label in labels.items():
            seen[label].append(answer[key])
    return {label: spread(rates) for label, rates in seen.items()}


def pong_bars(found: Found) -> list[Bar]:
    """Two workers against one process."""
    return [Bar("Pong-ram, sampling, 2 workers / in-process", found[RATIO]["median"], 1.75, at_least=True, unit="x")]


def measure_sleeping(repeats: int, quick: bool) -> Found:
    """Steps per second of 1 to 32 workers with one simulator each that waits 10 ms per step, and of 256: 100 ms."""
    cases = [(count, WAITS_S) for count in ((1, 4) if quick else COUNTS)]
    cases += [(count, LONG_WAITS_S) for count in ((1, 8) if quick else (1, MANY))]
    seen: dict[str, list[Found]] = {}
    for repeat in range(repeats):
        for count, sleep_s in cases:
            label = f"{count}, {sleep_s:g} s"
            console.print(f"  {repeat + 1}/{repeats} {count} workers", style="dim")
            steps = round((0.2 if quick else 2.0) / sleep_s) if sleep_s == WAITS_S else (4 if quick else 50)
            work = {"env": f"{SIMULATORS}:Sleeping", "steps": steps, "rounds": 1 if quick else 3}
            layout = {"num_workers": count, "num_envs": count, "env_config": {"sleep_s": sleep_s}}
            seen.setdefault(label, []).append(ask("shoal", "sampling", "shoal_workers", **work, **layout).answer)
    return {
        label: {key: spread([each[key] for each in answers]) for key in ("sampling", "overall")}
        for label, answers in seen.items()
    }


def sleeping_bars(found: Found) -> list[Bar]:
    """The rate of N workers over N times that of one, for sampling."""
    bars = []
    for label, row in found.items():
        count, wait = label.split(", ")
        if count != "1":
            share = row["sampling"]["median"] / int(count) / found[f"1, {wait}"]["sampling"]["median"]
            limit = 0.96 if wait == f"{WAITS_S:g} s" else 0.9
            bars.append(Bar(f"{count} workers that wait {wait} / {count} x one", share, limit, at_least=True))
    return bars


def measure_killed(repeats: int, quick: bool) -> Found:
    """Steps per second of 4 workers, undisturbed and then with `kill -9` of one of them every 5 s."""
    who = ("shoal",) if quick else ("shoal", "rllib")
    seconds = 8 if quick else 45
    answers: dict[str, list[Found]] = {each: [] for each in who}
    for repeat in range(repeats):
        for each in who if repeat == 0 else ("shoal",):  # RLlib's figure stands beside ours, it is no bar
            console.print(f"  {repeat + 1}/{repeats} {each}", style="dim")
            runner = "shoal_workers" if each == "shoal" else ""
            answers[each].append(ask(each, "killed", runner, **STRUCK, seconds=seconds).answer)
    return {
        each: {
            "share": spread([answer["struck"] / answer["calm"] for answer in found]),
            **{key: spread([answer[key] for answer in found]) for key in found[0]},
        }
        for each, found in answers.items()
    }


def killed_bars(found: Found) -> list[Bar]:
    """The share of the undisturbed rate; a run that is lost would not have answered at all."""
    return [Bar("4 workers, one killed every 5 s / undisturbed", found["shoal"]["share"]["median"], 0.95, True)]


def measure_startup(repeats: int, quick: bool) -> Found:  # noqa: ARG001
    """Seconds from process start to the first finished iteration, with two sampling processes."""
    seen: dict[str, list[float]] = {"shoal": [], "rllib": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            words = ("train", "CartPole-v1", "--num-workers", "2", "--stop", "training_iteration=1", "--new")
            ended = shoal_command(*words, results_dir=Path(folder))
            (results,) = Path(folder).glob("**/result.json")
            # The file's time is of the calendar; the process's start is on the clock that all processes share.
            seen["shoal"].append(results.stat().st_mtime - (time.time() - time.monotonic()) - ended.started)
        ended = ask("rllib", "startup", **FIRST, num_env_runners=2)
        seen["rllib"].append(ended.answer["finished_at"] - ended.started)
    return {who: spread(times) for who, times in seen.items()}


def startup_bars(found: Found) -> list[Bar]:
    """Our start against RLlib's."""
    ratio = found["shoal"]["median"] / found["rllib"]["median"]
    return [Bar("first iteration, 2 workers / RLlib's with 2 runners", ratio, 1 / 2, at_least=False)]


def measure_replaced(repeats: int, quick: bool) -> Found:
    """Seconds from `kill -9` of one of four workers until it has been replaced, is where it stood and answers."""
    found: list[float] = []
    for _ in range(repeats):
        found += ask("shoal", "replaced", "shoal_workers", num_workers=4, times=3 if quick else 12).answer["seconds"]
    return {"seconds": spread(found)}


def replaced_bars(found: Found) -> list[Bar]:
    """The slowest of them all."""
    return [Bar("a dead worker is replaced, slowest", found["seconds"]["high"], 0.5, at_least=False, unit=" s")]


def measure_memory(repeats: int, quick: bool) -> Found:
    """Start-up and memory of all processes of a run with 64 workers on the NumPy path, and whether one has torch.

    Beside it the design before, with a Ray actor for each worker, in turns.
    """
    designs = {"one actor per host": {}, "one actor per worker": {"source": source_of(BEFORE)}}
    answers: dict[str, list[Found]] = {design: [] for design in designs}
    for repeat in range(repeats):
        for design, source in designs.items():
            console.print(f"  {repeat + 1}/{repeats} {design}", style="dim")
            count = 4 if quick else 64
            answers[design].append(ask("shoal", "crowd", "shoal_workers", **source, num_workers=count).answer)
    found: Found = {
        design: {
            **{key: spread([answer[key] for answer in each]) for key in ("start_s", "pss_mb")},
            "parts_mb": each[-1]["parts_mb"],
        }
        for design, each in answers.items()
    }
    now, before = answers.values()
    for key in ("start_s", "pss_mb"):
        found[f"{key}, now / before"] = spread([a[key] / b[key] for a, b in zip(now, before, strict=True)])
    return {**found, "torch": any(answer["torch"] for answer in now)}


def memory_bars(found: Found) -> list[Bar]:
    """All of it, against the design before, and torch in none of the processes."""
    held = found["one actor per host"]["pss_mb"]["median"]
    start, memory = (found[f"{key}, now / before"]["median"] for key in ("start_s", "pss_mb"))
    return [
        Bar("64 workers, start / with one actor per worker", start, 1 / 3, at_least=False),
        Bar("64 workers, memory / with one actor per worker", memory, 1 / 2, at_least=False),
        Bar("64 workers, memory of all processes", held, 2500, at_least=False, unit=" MB"),
        Bar("processes with torch", float(found["torch"]), 0, at_least=False),
    ]


PARTS = {
    "ppo": Part(measure_ppo, ppo_bars, ("shoal", "sb3", "rllib")),
    "pong": Part(measure_pong, pong_bars),
    "sleeping": Part(measure_sleeping, sleeping_bars),
    "killed": Part(measure_killed, killed_bars, ("shoal", "rllib")),
    "replaced": Part(measure_replaced, replaced_bars),
    "startup": Part(measure_startup, startup_bars, ("shoal", "rllib")),
    "memory": Part(measure_memory, memory_bars),
}


def show(part: str, found: Found) -> None:
    """Print what was measured, a line for every spread of figures."""
    table = Table(
        "what", "median (low..high)", title=(PARTS[part].measure.__doc__ or part).partition("\n")[0].rstrip(".")
    )
    for label, value in _spreads(found):
        digits = ",.0f" if value["median"] >= 100 else ".3g"
        table.add_row(label, "{:{d}} ({:{d}}..{:{d}})".format(*value.values(), d=digits))
    console.print(table)


def plot(found: Found) -> None:
    """Draw the rate of waiting workers over their number."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {label.split(",")[0]: row for label, row in found.items() if label.endswith(f", {WAITS_S:g} s")}
    counts = [int(count) for count in found]
    one = found["1"]["sampling"]["median"]
    figure, axis = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
    axis.plot(counts, [count * one for count in counts], color="grey", linestyle="--", label="N x one worker")
    for key, label in (("sampling", "sampling"), ("overall", "sampling, then learning")):
        rates = [row[key]["median"] for row in found.values()]
        axis.plot(counts, rates, marker="o", label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(counts, [str(count) for count in counts])
    ticks = [100 * count for count in counts]
    axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set(xlabel="workers, one simulator each that waits 10 ms per step", ylabel="steps per second")
    axis.legend()
    figure.savefig(RESULTS / "workers.png", dpi=90)
    pyplot.close(figure)


def _spreads(found: Found, path: str = "") -> list[tuple[str, dict[str, float]]]:
    if "median" in found:
        return [(path, found)]
    inner = [(key, value) for key, value in found.items() if isinstance(value, dict)]
    return [row for key, value in inner for row in _spreads(value, f"{path}, {key}".lstrip(", "))]


def main() -> None:
    """Measure, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all unless named")
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    repeats = 1 if options.quick else options.repeats
    missed = []
    for name in options.parts or PARTS:
        part = PARTS[name]
        settings = {"ppo": WORK, "killed": STRUCK, "startup": FIRST}.get(name, {})
        who = ("shoal",) if options.quick else part.who
        record = Record(f"workers-{name}", who, {**settings, "repeats": repeats})
        found = part.measure(repeats, options.quick)
        bars = part.bars(found)
        show(name, found)
        show_bars(bars)
        missed += [bar.name for bar in bars if not bar.met]
        if not options.quick:
            record.keep(found, bars)
            if name == "sleeping":
                plot(found)
    if missed:
        console.print(f"missed: {', '.join(missed)}", style="red")


if __name__ == "__main__":
    main()
