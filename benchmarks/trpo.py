"""TRPO beside sb3-contrib's: the first ten iterations on Pong's memory, and the time until CartPole-v1 is solved.

pong: 10 iterations of 4096 steps from 8 environments, 64x64 tanh with a value net of its own; sb3-contrib as it comes,
and with the same conjugate-gradient iterations, passes and minibatches of the value fit as shoal has by default. The
clock starts when environments and workers are up. cartpole: seconds from process start until the mean return of the
last 100 episodes is 475: `shoal train CartPole-v1 --run TRPO` to the end of the process, and the zoo's settings.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import ask, shoal_command
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

BATCH = {"num_envs": 8, "batch": 4096}
WORK = {"minibatch": 256, "epochs": 10, "cg_iters": 10}
GOAL, MOST_STEPS = 475.0, 300_000


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    label: str
    who: str
    arguments: dict[str, Any]


IN_PROCESS = Case("shoal, in-process", "shoal", {"num_workers": 0, **WORK})
TWO_WORKERS = Case("shoal, 2 workers", "shoal", {"num_workers": 2, **WORK})
AS_IT_COMES = (
    Case("sb3-contrib, DummyVecEnv", "sb3", {"subprocesses": False}),
    Case("sb3-contrib, SubprocVecEnv", "sb3", {"subprocesses": True}),
)
SAME_WORK = (
    Case("sb3-contrib, same work, DummyVecEnv", "sb3", {"subprocesses": False, **WORK}),
    Case("sb3-contrib, same work, SubprocVecEnv", "sb3", {"subprocesses": True, **WORK}),
)
CASES = (IN_PROCESS, TWO_WORKERS, *AS_IT_COMES, *SAME_WORK)


def measure_pong(repeats: int, iterations: int) -> dict[str, Any]:
    """Seconds of the first iterations, in all and by their two parts; repeats are interleaved."""
    seen: dict[str, list[dict[str, float]]] = {case.label: [] for case in CASES}
    for repeat in range(repeats):
        for case in CASES:
            console.print(f"  Pong {repeat + 1}/{repeats} {case.label}", style="dim")
            ended = ask(case.who, "trpo", **BATCH, **case.arguments, iterations=iterations)
            seen[case.label].append(ended.answer)
    return {
        label: {key: spread([each[key] for each in answers]) for key in ("overall_s", "sampling_s", "learning_s")}
        for label, answers in seen.items()
    }


def measure_solve(seeds: Sequence[int]) -> dict[str, list[dict[str, float | None]]]:
    """Seconds and steps to the goal for each seed; None where it was not reached."""
    runs: dict[str, list[dict[str, float | None]]] = {"shoal": [], "sb3": []}
    for seed in seeds:
        console.print(f"  CartPole seed {seed}", style="dim")
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            words = ("train", "CartPole-v1", "--run", "TRPO", "--seed", str(seed), "--new")
            ended = shoal_command(*words, results_dir=Path(folder))
        last = ended.answer
        solved = last["episode_reward_mean"] >= GOAL and last["episodes_total"] >= 100
        took = {"seconds": ended.ended - ended.started, "timesteps": last["timesteps_total"]}
        runs["shoal"].append(took if solved else {"seconds": None, "timesteps": None})
        ended = ask("sb3", "solve_trpo", seed=seed, goal=GOAL, most_steps=MOST_STEPS)
        at = ended.answer["solved_at"]
        runs["sb3"].append({"seconds": at and at - ended.started, "timesteps": ended.answer["timesteps"]})
    return runs


def median_seconds(runs: list[dict[str, float | None]]) -> float:
    """The median over the seeds, in which an unsolved seed took forever."""
    return statistics.median(math.inf if run["seconds"] is None else run["seconds"] for run in runs)


def pong_bars(rows: dict[str, Any]) -> list[Bar]:
    """Ratios of medians; sb3-contrib counts with the faster of its two layouts."""
    seconds = {label: row["overall_s"]["median"] for label, row in rows.items()}
    alone, two = seconds[IN_PROCESS.label], seconds[TWO_WORKERS.label]
    bars = [Bar("Pong-ram, 2 workers / in-process", alone / two, 1.6, at_least=True, unit="x")]
    for name, cases in (("sb3-contrib", AS_IT_COMES), ("sb3-contrib, same work", SAME_WORK)):
        peer = min(seconds[case.label] for case in cases)
        bars += [
            Bar(f"Pong-ram, in-process / {name}", peer / alone, 1.5, at_least=True, unit="x"),
            Bar(f"Pong-ram, 2 workers / {name}", peer / two, 2.5, at_least=True, unit="x"),
        ]
    return bars


def solve_bars(runs: dict[str, Any]) -> list[Bar]:
    """The ratio of the medians over the seeds."""
    ratio = median_seconds(runs["shoal"]) / median_seconds(runs["sb3"])
    return [Bar("CartPole solved, time / sb3-contrib's", ratio, 1 / 4, at_least=False)]


def show_pong(rows: dict[str, Any]) -> None:
    """Print one row for each case."""
    table = Table("case", "overall", "sampling", "learning", title="Pong-ram: seconds, median (low..high)")
    for label, row in rows.items():
        table.add_row(label, *("{median:.2f} ({low:.2f}..{high:.2f})".format(**row[key]) for key in row))
    console.print(table)


def show_solve(results: dict[str, Any]) -> None:
    """Print one row for each library."""
    table = Table("who", "median, s", "each seed, s", "each seed, steps", title="CartPole-v1 solved by TRPO")
    for who, runs in results.items():
        seconds = " ".join("never" if run["seconds"] is None else f"{run['seconds']:.1f}" for run in runs)
        steps = " ".join("-" if run["timesteps"] is None else f"{run['timesteps']:,.0f}" for run in runs)
        table.add_row(who, f"{median_seconds(runs):.1f}", seconds, steps)
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=("pong", "cartpole"), default=["pong", "cartpole"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    repeats, seeds, iterations = (1, 1, 2) if options.quick else (options.repeats, options.seeds, 10)
    if "pong" in options.what:
        record = Record("trpo_pong", ["shoal", "sb3"], {**BATCH, **WORK, "iterations": iterations, "repeats": repeats})
        rows = measure_pong(repeats, iterations)
        show_pong(rows)
        show_bars(bars := pong_bars(rows))
        if not options.quick:
            record.keep(rows, bars)
    if "cartpole" in options.what:
        record = Record("trpo_solve", ["shoal", "sb3"], {"goal": GOAL, "most_steps": MOST_STEPS, "seeds": seeds})
        runs = measure_solve(range(seeds))
        show_solve(runs)
        show_bars(bars := solve_bars(runs))
        if not options.quick:
            record.keep(runs, bars)


if __name__ == "__main__":
    main()
