"""A learner that fills the wait: how long SAC and DQN wait for simulators that take a second, and what updates bring.

wait: four workers with one pendulum (DQN: pole) each whose every step takes 1 s, sampled and learned from in turns, and
side by side, for a minute after the 1,000 steps at which learning begins by default; those first steps take no time,
since nothing is measured in them. returns: SAC with steps of 0.05 s, after as many simulator calls for all; the mean of
ten episodes with the most likely actions. Cases have their turns one after another, each in a process of its own. Each
part keeps a file of its own.
"""

from __future__ import annotations

import argparse
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

COMMON = {"num_workers": 4, "model": {"fcnet_hiddens": [64, 64]}}
WAIT = {
    "sleep_s": 1.0,
    "quick_steps": 250,
    "steps": 1240,
    "learning_starts": 1000,
    "timesteps_per_iteration": 20,
}
RETURNS = {"sleep_s": 0.05, "steps": 2000, "learning_starts": 400, "timesteps_per_iteration": 200}
BESIDE = {"sample_async": True}
WAIT_CASES: dict[str, dict[str, Any]] = {
    "in turns": {},
    "auto": {**BESIDE, "training_intensity": "auto"},
    "auto, max_overfit_ratio null": {**BESIDE, "training_intensity": "auto", "max_overfit_ratio": None},
}
SLOW = {"SAC": "SlowPendulum", "DQN": "SlowCartPole"}
RETURN_CASES = {name: WAIT_CASES[name] for name in ("in turns", "auto")}


def measure(run: str, cases: dict[str, dict[str, Any]], settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The answers of each case, with another seed in every repeat; all cases in turn."""
    found: dict[str, Any] = {name: [] for name in cases}
    for seed in range(1, repeats + 1):
        for name, own in cases.items():
            told = {"run": run, "env": SLOW[run], "seed": seed, **COMMON, **settings, **own}
            answer = ask("shoal", "fill", "async", **told).answer
            console.print(f"  {run}, {name}, seed {seed}: {answer}", style="dim")
            found[name].append(answer)
    return found


def show(title: str, found: dict[str, Any]) -> None:
    """Print one row for each case."""
    table = Table("case", "learner waits", "updates per step", "return", title=title)
    for name, answers in found.items():
        middle = {key: spread([each[key] for each in answers])["median"] for key in ("wait_share", "return")}
        updates = spread([each["updates_per_step"] for each in answers])["median"]
        table.add_row(name, f"{middle['wait_share']:.1%}", f"{updates:.1f}", f"{middle['return']:.0f}")
    console.print(table)


def bars_of(waited: dict[str, Any]) -> list[Bar]:
    """How long each learner waits with `training_intensity: auto` and nothing else set."""
    bars = []
    for run, found in waited.items():
        waits = spread([each["wait_share"] for each in found["auto"]])
        bars.append(Bar(f"share of the time that {run} waits, 1 s simulators", waits["median"], 0.05, at_least=False))
    return bars


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=("wait", "returns"), default=["wait", "returns"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    wait, returns, repeats = WAIT, RETURNS, options.repeats
    if options.quick:
        wait, returns, repeats = {**WAIT, "sleep_s": 0.05}, {**RETURNS, "steps": 600, "sleep_s": 0.01}, 1
    if "wait" in options.what:
        record = Record("fill_the_wait", ["shoal"], {**COMMON, **wait})
        waited = {run: measure(run, WAIT_CASES, wait, 1) for run in SLOW}
        for run, found in waited.items():
            show(f"wait, {run}", found)
        show_bars(bars := bars_of(waited))
        if not options.quick:
            record.keep({"wait": waited}, bars)
    if "returns" in options.what:
        record = Record("fill_the_wait_returns", ["shoal"], {**COMMON, **returns, "repeats": repeats})
        found = measure("SAC", RETURN_CASES, returns, repeats)
        show("returns", found)
        if not options.quick:
            record.keep({"returns": found}, [])


if __name__ == "__main__":
    main()
