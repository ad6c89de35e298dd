"""What several seeds in one process cost: `shoal train --seeds 5` in turns with a run of a single seed.

Each turn is a whole command in a process of its own, from its start to its end, with one thread for BLAS. A ratio is
that of two turns right after one another; of all ratios the median is given with the lowest and the highest. The last
links of the chains tell that a seed has the same weights in both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import ONE_THREAD, ROOT, python_of
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

COUNT = 5
WORK = {"CartPole-v1": 60_000, "Pendulum-v1": 60_000}
"""Steps of each seed; everything else is the default."""


def turn(env: str, steps: int, seeds: int) -> dict[str, Any]:
    """One command: its wall and CPU seconds, and the last link of each seed's chain."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python_of("shoal")), "-m", "shoal", "train", env, "--run", "PPO", "--seed", "0"]
        command += ["--seeds", str(seeds), "--stop", f"timesteps_total={steps}", "--results-dir", folder, "--quiet"]
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **ONE_THREAD}, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"wall_s": wall, "cpu_s": cpu, "links": links_in(Path(folder))}


def links_in(folder: Path) -> dict[int, str]:
    """The last link of each run's chain, by its seed."""
    found = {}
    for chain in folder.glob("*/*/chain.jsonl"):
        head, *lines = (json.loads(line) for line in chain.read_text().splitlines())
        found[int(head["seed"])] = str(lines[-1]["link"])
    return found


def measure(env: str, steps: int, rounds: int) -> dict[str, Any]:
    """Seconds of one seed and of five, in turns, and their ratios."""
    turns: dict[int, list[dict[str, Any]]] = {1: [], COUNT: []}
    for number in range(rounds):
        for seeds in sorted(turns, reverse=bool(number % 2)):
            turns[seeds].append(turn(env, steps, seeds))
    links = {made["links"][0] for each in turns.values() for made in each}
    if len(links) > 1:
        raise SystemExit(f"{env}: seed 0 has other weights beside others than alone")
    kept: dict[str, Any] = {"num_links": len(turns[COUNT][0]["links"])}
    for clock in ("wall_s", "cpu_s"):
        one, five = ([made[clock] for made in turns[seeds]] for seeds in (1, COUNT))
        kept[f"one_{clock}"], kept[f"five_{clock}"] = spread(one), spread(five)
        kept[f"five_over_one_{clock}"] = spread([many / single for single, many in zip(one, five, strict=True)])
    return kept


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print one row for each figure."""
    table = Table("", "median", "lowest .. highest", title=f"{COUNT} seeds of one command beside one")
    for env, figures in results.items():
        for name, figure in figures.items():
            if isinstance(figure, dict):
                table.add_row(
                    f"{env}: {name}", f"{figure['median']:.4g}", f"{figure['low']:.4g} .. {figure['high']:.4g}"
                )
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    work = {env: 6_000 if options.quick else steps for env, steps in WORK.items()}
    record = Record("seeds", ["shoal"], {"steps": work, "seeds": COUNT, "rounds": rounds})
    results = {env: measure(env, steps, rounds) for env, steps in work.items()}
    bars = []
    for env, figures in results.items():
        bars.append(Bar(f"{env}: five seeds over one, wall", figures["five_over_one_wall_s"]["median"], 3.0, False))
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
