"""SAC on Pendulum-v1 beside Stable-Baselines3 and sbx.

rates: steps per CPU second. learn: what the defaults of shoal and SB3 reach in 8,000 steps. Each keeps a file of its
own, because the first needs the machine to itself and the second does not.

In rates, all make one update of 256 transitions for each step, with one environment, at 256x256 and at 64x64; shoal
with NumPy, which is its default, and with its compiled kernel. CPU
seconds are those of all threads of a process, because sbx takes all cores that it finds. The rounds go through all
libraries in turn, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
from statistics import fmean
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

WORK = {"num_envs": 1, "batch": 256, "learning_starts": 100, "warmup": 600}
WIDTHS = {"256x256": [256, 256], "64x64": [64, 64]}
LIBRARIES = ("shoal", "sb3", "sbx")
COMPILED = "shoal compiled"
GOAL, STEPS, SEEDS = -200.0, 8_000, 5


def measure_rates(who: list[str], repeats: int, steps: int) -> dict[str, Any]:
    """Steps per CPU second and per second of each library and width; repeats are interleaved."""
    seen: dict[str, list[dict[str, float]]] = {}
    for repeat in range(repeats):
        for width, hiddens in WIDTHS.items():
            for contender in contenders(who):
                label = f"{contender}, {width}"
                console.print(f"  {repeat + 1}/{repeats} {label}", style="dim")
                seen.setdefault(label, []).append(rate(contender, hiddens, steps))
    return {
        label: {key: spread([each[key] for each in answers]) for key in ("per_cpu_s", "per_s")}
        for label, answers in seen.items()
    }


def contenders(who: list[str]) -> list[str]:
    """The libraries, and shoal's second kernel behind its first."""
    found = []
    for library in who:
        found.append(library)
        if library == "shoal":
            found.append(COMPILED)
    return found


def rate(contender: str, hiddens: list[int], steps: int) -> dict[str, float]:
    """What one process of one contender measures."""
    more = {}
    if contender.startswith("shoal"):
        more["kernel"] = "compiled" if contender == COMPILED else "numpy"
    return ask(contender.split()[0], "sac", **WORK, hiddens=hiddens, steps=steps, **more).answer


def learn(env: str, who: list[str], seeds: int, steps: int) -> dict[str, Any]:
    """The returns of evaluation after so many steps with each library's defaults."""
    found: dict[str, Any] = {}
    for seed in range(seeds):
        for library in who:
            console.print(f"  {env}, {library}, seed {seed}", style="dim")
            answer = ask(library, "learn_sac", env=env, steps=steps, seed=seed, evaluated=20).answer
            found.setdefault(library, []).append(answer)
    return found


def bars_of_rates(rates: dict[str, Any]) -> list[Bar]:
    """Every bar of speed for which both sides were measured."""
    bars = []
    for own, peer, width, limit in (
        ("shoal", "sb3", "256x256", 1.4),
        ("shoal", "sbx", "256x256", 0.95),
        ("shoal", "sb3", "64x64", 4.0),
        (COMPILED, "sb3", "64x64", 4.0),
    ):
        mine, theirs = rates.get(f"{own}, {width}"), rates.get(f"{peer}, {width}")
        if mine and theirs:
            ratio = mine["per_cpu_s"]["median"] / theirs["per_cpu_s"]["median"]
            bars.append(Bar(f"steps per CPU second, {own} / {peer}, {width}", ratio, limit, at_least=True, unit="x"))
    return bars


def bars_of_learning(learned: dict[str, Any]) -> list[Bar]:
    """How many seeds reach the goal."""
    pendulum = learned["Pendulum-v1"].get("shoal", [])
    reached = sum(run["return"] >= GOAL for run in pendulum)
    name = f"seeds of {SEEDS} that reach {GOAL:g} on Pendulum-v1 in {STEPS:,} steps"
    bars = [Bar(name, reached, SEEDS, at_least=True)] if pendulum else []
    for env, found in learned.items():
        mine, theirs = ([run["return"] for run in found.get(who, [])] for who in ("shoal", "sb3"))
        if mine and len(theirs) > 1 and env != "Pendulum-v1":
            bars.append(Bar(f"{env}: mean return, and sb3's lowest seed", fmean(mine), min(theirs), at_least=True))
    return bars


def show_rates(rates: dict[str, Any]) -> None:
    """Print one row for each library and width."""
    table = Table("library", "per CPU second", "per second", title="SAC, Pendulum-v1: steps, median")
    for label, row in rates.items():
        table.add_row(label, *(f"{row[key]['median']:,.1f}" for key in ("per_cpu_s", "per_s")))
    console.print(table)


def show_learned(learned: dict[str, Any]) -> None:
    """Print the return of each seed."""
    for env, found in learned.items():
        for library, runs in found.items():
            console.print(f"  {env}, {library}: " + ", ".join(f"{run['return']:,.0f}" for run in runs))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=("rates", "learn"), default=["rates", "learn"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--who", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--mujoco", type=int, metavar="STEPS", help="also HalfCheetah-v5 and Hopper-v5, 3 seeds each")
    options = parser.parse_args()
    repeats, steps = (1, 200) if options.quick else (options.repeats, 1000)
    seeds, goal_steps = (1, 1200) if options.quick else (options.seeds, STEPS)
    if "rates" in options.what:
        record = Record("sac_rates", options.who, {**WORK, "repeats": repeats, "steps": steps})
        rates = measure_rates(options.who, repeats, steps)
        show_rates(rates)
        show_bars(bars := bars_of_rates(rates))
        if not options.quick:
            record.keep(rates, bars)
    if "learn" in options.what:
        learners = [library for library in options.who if library != "sbx"]
        record = Record("sac_learn", learners, {"seeds": seeds, "goal": GOAL, "steps": goal_steps})
        learned = {"Pendulum-v1": learn("Pendulum-v1", learners, seeds, goal_steps)}
        if options.mujoco:
            for env in ("HalfCheetah-v5", "Hopper-v5"):
                learned[env] = learn(env, learners, 3, options.mujoco)
        show_learned(learned)
        show_bars(bars := bars_of_learning(learned))
        if not options.quick:
            record.keep(learned, bars)


if __name__ == "__main__":
    main()
