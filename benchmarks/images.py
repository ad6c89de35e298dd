"""Steps per CPU second of PPO and DQN on Breakout's frames in shoal and Stable-Baselines3, on the same work.

Both have the Nature network (512 features for policy and value), eight environments of 84 x 84 grey pixels, four frames
stacked, and SB3's settings for Atari (`runners/images_work.py`). Frames come from the game, prepared by each library
itself, or from EnvPool for both. CPU seconds are those of all threads of the process; the two libraries take turns, and
a ratio is that of one turn. Also: what the convolutions alone cost, which nobody gets below.
"""

from __future__ import annotations

import argparse
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

CASES = (("ppo", "game"), ("ppo", "envpool"), ("dqn", "game"), ("dqn", "envpool"))
NAMES = {"game": "its own preprocessing", "envpool": "EnvPool's frames"}
WORK = {"ppo": {"warmup": 1024, "steps": 4096}, "dqn": {"warmup": 1024, "steps": 2048}}
LIMIT = 1.3


def measure(repeats: int, share: float) -> dict[str, Any]:
    """The rates of both libraries in each case, and their ratios turn by turn."""
    seen: dict[str, dict[str, list[float]]] = {}
    for repeat in range(repeats):
        for run, frames in CASES:
            rates = {}
            for who in ("shoal", "sb3"):
                console.print(f"  {repeat + 1}/{repeats} {run} {frames} {who}", style="dim")
                steps = int(WORK[run]["steps"] * share)
                asked = {"frames": frames, "warmup": WORK[run]["warmup"], "steps": steps}
                rates[who] = ask(who, run, runner=f"images_{who}", **asked).answer["per_cpu_s"]
            row = seen.setdefault(f"{run.upper()}, {NAMES[frames]}", {"shoal": [], "sb3": [], "ratio": []})
            for who, rate in rates.items():
                row[who].append(rate)
            row["ratio"].append(rates["shoal"] / rates["sb3"])
    return {label: {key: spread(values) for key, values in row.items()} for label, row in seen.items()}


def measure_floor(repeats: int) -> dict[str, Any]:
    """Milliseconds of the network alone for one row of a minibatch, channels first and last."""
    answers = [ask("shoal", "floor", runner="images_shoal", rows=256).answer for _ in range(repeats)]
    return {key: spread([each[key] for each in answers]) for key in answers[0]}


def show(results: dict[str, Any]) -> None:
    """Print what was measured."""
    table = Table("case", "shoal", "SB3", "ratio", title="Steps per CPU second, one thread, median (low..high)")
    for label, row in results["rates"].items():
        table.add_row(label, *(_cell(row[key]) for key in ("shoal", "sb3", "ratio")))
    console.print(table)
    table = Table("the network alone, ms per row of a minibatch", "median (low..high)")
    for label, times in results["floor"].items():
        table.add_row(label, _cell(times))
    console.print(table)


def _cell(value: dict[str, float]) -> str:
    return "{median:.3g} ({low:.3g}..{high:.3g})".format(**value)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    repeats, share = (1, 0.25) if options.quick else (options.repeats, 1.0)
    record = Record("images", ("shoal", "sb3"), {**WORK, "repeats": repeats})
    results = {"rates": measure(repeats, share), "floor": measure_floor(repeats)}
    bars = [
        Bar(f"{label}: steps per CPU second / SB3's", row["ratio"]["median"], LIMIT, at_least=True, unit="x")
        for label, row in results["rates"].items()
    ]
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
