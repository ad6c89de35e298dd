"""ARS beside sb3-contrib's: what linear policies return after equal steps, and steps per CPU second.

shoal has its defaults; sb3-contrib has its own defaults, and shoal's settings (number of directions, step, noise,
normalised observations). ES, CEM and CMAES stand beside the same ARS, for it is the only search that the peer has; they
search the parameters of a network where ARS has a linear policy, so their rates say what a step of the whole search
costs; that of CMAES has no bar, for most of it is the package's covariance of all parameters. Steps are counted over
whole iterations, so each run ends a little after them.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

STEPS = {"CartPole-v1": 20_000, "Pendulum-v1": 100_000}
SAME = {"num_rollouts": 32, "lr": 0.1, "noise_stdev": 0.1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "shoal": ("shoal", {"run": "ARS"}),
    "sb3-contrib": ("sb3", {}),
    "sb3-contrib, shoal's settings": ("sb3", {"same": SAME}),
    **{f"shoal's {run}": ("shoal", {"run": run}) for run in ("ES", "CEM", "CMAES")},
}
PEERS = ("sb3-contrib", "sb3-contrib, shoal's settings")
EVALUATED = 20


def measure(seeds: int, share: float) -> dict[str, Any]:
    """Every run of every case; seeds are interleaved."""
    found: dict[str, Any] = {env: {case: [] for case in CASES} for env in STEPS}
    for seed in range(seeds):
        for env, steps in STEPS.items():
            for case, (who, arguments) in CASES.items():
                console.print(f"  {env}, {case}, seed {seed}", style="dim")
                task = {"env": env, "steps": round(steps * share), "seed": seed, "evaluated": EVALUATED}
                found[env][case].append(ask(who, "learn", runner=f"ars_{who}", **task, **arguments).answer)
    return found


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Returns of all seeds and the spread of the rates."""
    returns = [run["return"] for run in runs]
    rates = spread([run["per_cpu_s"] for run in runs])
    return {"mean_return": statistics.fmean(returns), "returns": returns, "per_cpu_s": rates, "runs": runs}


def bars_of(results: dict[str, Any]) -> list[Bar]:
    """Speed beside the faster of sb3-contrib's cases, and ARS's mean return beside the better of them."""
    bars = []
    for env, cases in results.items():
        fastest = max(cases[peer]["per_cpu_s"]["median"] for peer in PEERS)
        for name, run, limit in (("shoal", "ARS", 2.0), ("shoal's ES", "ES", 1.0), ("shoal's CEM", "CEM", 1.0)):
            told = f"{env}: steps per CPU second of {run} / of sb3-contrib's ARS"
            bars.append(Bar(told, cases[name]["per_cpu_s"]["median"] / fastest, limit, at_least=True, unit="x"))
        best = max(cases[peer]["mean_return"] for peer in PEERS)
        bars.append(Bar(f"{env}: mean return", cases["shoal"]["mean_return"], best - 0.05 * abs(best), at_least=True))
    return bars


def show(results: dict[str, Any]) -> None:
    """Print one row for each case."""
    table = Table("task", "who", "return, each seed", "mean", "steps per CPU second", title="Search after equal steps")
    for env, cases in results.items():
        for case, row in cases.items():
            returns = ", ".join(f"{value:.0f}" for value in row["returns"])
            table.add_row(env, case, returns, f"{row['mean_return']:.0f}", f"{row['per_cpu_s']['median']:,.0f}")
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the steps, one seed; nothing is kept")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    seeds, share = (1, 0.02) if options.quick else (options.seeds, 1.0)
    record = Record(
        "evolution", ["shoal", "sb3"], {"steps": STEPS, "same": SAME, "seeds": seeds, "evaluated": EVALUATED}
    )
    found = measure(seeds, share)
    results = {env: {case: summary(runs) for case, runs in cases.items()} for env, cases in found.items()}
    show(results)
    show_bars(bars := bars_of(results))
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
