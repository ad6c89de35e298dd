"""APPO beside PPO: speed where workers differ tenfold in pace, and steps until CartPole and Pendulum are learned.

Speed: four workers with one simulator each, of which the slowest waits ten times as long as the fastest. All cases
live in one process and have their turns one after another; RLlib's APPO does the same work in its own before and after
that. Learning: two workers of four environments each, as fast as
they can, and the same settings for both; what counts is the number of steps until the mean return of the last 100
episodes is reached.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

PACE = {"num_workers": 4, "sleep_s": 0.002, "train_batch_size": 128, "sgd_minibatch_size": 64, "num_sgd_iter": 4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("PPO", {}),
    "PPO, sample_async": ("PPO", {"sample_async": True}),
    "APPO": ("APPO", {}),
    "APPO, max_staleness 4": ("APPO", {"max_staleness": 4}),
}
TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"goal": 400.0, "most": 300_000},
    "Pendulum-v1": {"goal": -250.0, "most": 300_000, "gamma": 0.9},
}


def learn(seeds: int, tasks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Steps to the goal of each task and seed, PPO and APPO in turns."""
    found: dict[str, Any] = {}
    for env, settings in tasks.items():
        for seed in range(1, seeds + 1):
            for run in ("PPO", "APPO"):
                answer = ask(
                    "shoal", "steps_to", "async", env=env, run=run, seed=seed, num_workers=2, **settings
                ).answer
                console.print(f"  {env}, seed {seed}, {run}: {answer}", style="dim")
                found.setdefault(env, {}).setdefault(run, []).append(answer)
    return found


def bars_of(results: dict[str, Any]) -> list[Bar]:
    """Speed beside PPO in both of its ways, and the median number of steps beside PPO's."""
    rates = results["pace"]["ratios"]
    bars = [Bar(f"APPO / {name}, steps per second", rates[name]["median"], 1.5, True, "x") for name in rates]
    ours = statistics.median(results["pace"]["rates"]["APPO"])
    bars.append(Bar("APPO / RLlib's, steps per second", ours / max(results["pace"]["rllib"]["rates"]), 1.0, True, "x"))
    for env, found in results["learned"].items():
        steps = {run: [each["steps"] or float("inf") for each in runs] for run, runs in found.items()}
        ratio = statistics.median(steps["APPO"]) / statistics.median(steps["PPO"])
        bars.append(Bar(f"{env}, steps of APPO / of PPO", ratio, 1.3, False, "x"))
    return bars


def show(results: dict[str, Any]) -> None:
    """Print what was measured."""
    table = Table("case", "steps per second", "staleness, at most", title="Four workers, tenfold apart")
    for name, rates in results["pace"]["rates"].items():
        table.add_row(name, f"{statistics.median(rates):,.0f}", str(results["pace"]["staleness"][name]))
    table.add_row("RLlib's APPO", f"{statistics.median(results['pace']['rllib']['rates']):,.0f}", "")
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rounds, turn_s, seeds = (1, 1.0, 0) if options.quick else (options.rounds, 6.0, options.seeds)
    record = Record(
        "appo", ["shoal", "rllib"], {**PACE, "rounds": rounds, "turn_s": turn_s, "tasks": TASKS, "seeds": seeds}
    )
    before = ask("rllib", "pace", turn_s=turn_s, **PACE).answer
    paced = ask("shoal", "pace", "async", cases=CASES, rounds=rounds, turn_s=turn_s, **PACE).answer
    after = ask("rllib", "pace", turn_s=turn_s, **PACE).answer
    paced["rllib"] = {"rates": [before["rate"], after["rate"]]}
    ratios = {
        name: spread([mine / theirs for mine, theirs in zip(paced["rates"]["APPO"], paced["rates"][name], strict=True)])
        for name in ("PPO", "PPO, sample_async")
    }
    results = {"pace": {**paced, "ratios": ratios}, "learned": learn(seeds, TASKS)}
    bars = bars_of(results)
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
