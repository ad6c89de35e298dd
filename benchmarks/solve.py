"""Wall time from process start until CartPole-v1 is solved (mean return of the last 100 episodes >= 475).

shoal: `shoal train CartPole-v1`, as `make train` runs it, to the end of the process. SB3: the zoo's settings. RLlib:
its tuned example on two sampling processes. The peers' clocks stop when they are solved, before they clean up.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from peers import PEERS, ask, shoal_command
from record import Bar, Record, console, show_bars
from rich.table import Table

GOAL = 475.0


def solve(who: str, seed: int) -> dict[str, float | None]:
    """Seconds and steps to the goal; None where it was not reached."""
    if who != "shoal":
        ended = ask(who, "solve", seed=seed, goal=GOAL)
        at = ended.answer["solved_at"]
        return {"seconds": at and at - ended.started, "timesteps": ended.answer["timesteps"]}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ended = shoal_command("train", "CartPole-v1", "--seed", str(seed), "--new", results_dir=Path(folder))
    last = ended.answer
    if last["episode_reward_mean"] < GOAL or last["episodes_total"] < 100:
        return {"seconds": None, "timesteps": None}
    return {"seconds": ended.ended - ended.started, "timesteps": last["timesteps_total"]}


def median_seconds(runs: list[dict[str, float | None]]) -> float:
    """The median over the seeds, in which an unsolved seed took forever."""
    return statistics.median(math.inf if run["seconds"] is None else run["seconds"] for run in runs)


def show(results: dict[str, list[dict[str, float | None]]]) -> None:
    """Print one row for each library."""
    table = Table(
        "who", "median, s", "each seed, s", "each seed, steps", title="CartPole-v1 solved, from process start"
    )
    for who, runs in results.items():
        seconds = " ".join("never" if run["seconds"] is None else f"{run['seconds']:.1f}" for run in runs)
        steps = " ".join("-" if run["timesteps"] is None else f"{run['timesteps']:,.0f}" for run in runs)
        table.add_row(who, f"{median_seconds(runs):.1f}", seconds, steps)
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed; the figures are not kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--who", nargs="+", choices=("shoal", *PEERS), default=["shoal", *PEERS])
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    record = Record("solve", options.who, {"goal": GOAL, "seeds": list(seeds)})
    results: dict[str, Any] = {who: [] for who in options.who}
    for seed in seeds:
        for who in options.who:
            console.print(f"  seed {seed} {who}", style="dim")
            results[who].append(solve(who, seed))
    show(results)
    limits = {"sb3": 1 / 4, "rllib": 1 / 10}
    bars = [
        Bar(f"time to solve / {who}'s", median_seconds(results["shoal"]) / median_seconds(results[who]), limit, False)
        for who, limit in limits.items()
        if "shoal" in results and who in results
    ]
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
