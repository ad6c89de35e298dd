"""Which `max_overfit_ratio` is worth its wait: returns of SAC after as many simulator calls, and how long it waits.

A step of the pendulum takes the time of 20 updates: as many as fitted into a quarter of a second on the busy machine
of `results/fill_the_wait.json`; more fit on an idle one. The clock is not read: updates that a limit leaves out are
counted as waiting. So what else the machine does changes nothing, and the same seeds give the same figures. Cases have
their turns one after another, in a process of their own; each is kept as soon as it ends, and the same command
continues with those that are missing.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from peers import ask
from record import RESULTS, Bar, Record, console, show_bars, spread
from rich.table import Table

WORK = {"updates": 20, "begin": 1000, "steps": 1240, "num_envs": 4, "hiddens": [64, 64]}
LIMITS: dict[str, float | None] = {"null": None, "2 (the default)": 2.0, "1.25": 1.25}
MOST_WAIT = 0.05


def measure(seeds: int, found: dict[str, list[Any]], record: Record) -> None:
    """Every limit with every seed that is not there yet."""
    for seed in range(1, seeds + 1):
        for name, limit in LIMITS.items():
            if len(found.setdefault(name, [])) < seed:
                answer = ask("shoal", "limited", "async", **WORK, limit=limit, seed=seed).answer
                console.print(f"  {name}, seed {seed}: {answer}", style="dim")
                found[name].append(answer)
                record.keep(found, bars_of(found))


def show(found: dict[str, list[Any]]) -> None:
    """Print one row for each limit."""
    table = Table("max_overfit_ratio", "learner waits", "updates per step", "return, each seed", title="SAC, auto")
    for name, answers in found.items():
        waits = spread([each["wait_share"] for each in answers])["median"]
        updates = spread([each["updates_per_step"] for each in answers])["median"]
        returns = ", ".join(f"{each['return']:.0f}" for each in answers)
        table.add_row(name, f"{waits:.1%}", f"{updates:.1f}", returns)
    console.print(table)


def bars_of(found: dict[str, list[Any]]) -> list[Bar]:
    """How long the learner waits by default."""
    answers = found.get("2 (the default)")
    if not answers:
        return []
    waits = spread([each["wait_share"] for each in answers])["median"]
    return [Bar("share of the time that the learner waits, by default", waits, MOST_WAIT, at_least=False)]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="measure also what is there already")
    options = parser.parse_args()
    record = Record("overfit", ["shoal"], {**WORK, "seeds": options.seeds})
    found: dict[str, list[Any]] = {}
    kept = RESULTS / "overfit.json"
    if kept.exists() and not options.again:
        found = json.loads(kept.read_text())["results"]
    measure(options.seeds, found, record)
    show(found)
    show_bars(bars_of(found))


if __name__ == "__main__":
    main()
