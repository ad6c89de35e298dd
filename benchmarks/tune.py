"""How much a sweep costs beside bare Ray Tune: the 25 trivial trials of the seed's example, in a Ray of their own.

Both run the same function in the same kind of private Ray, with as many trials at once, in processes used again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

from record import Bar, Record, console, show_bars, spread

VALUES = [-1, -0.5, 0, 0.5, 1]
MOST = 1.3  # times the time of bare Ray Tune


def objective(config: dict[str, Any]) -> float:
    return math.sqrt((config["x"] ** 2 + config["y"] ** 2) / 2)


def with_shoal() -> dict[str, Any]:
    """As a user of shoal writes it."""
    import shoal

    def training_function(config: dict[str, Any]) -> None:
        shoal.tune.report(score=objective(config))

    space = {"x": shoal.tune.grid_search(VALUES), "y": shoal.tune.grid_search(VALUES)}
    analysis = shoal.tune.run(training_function, config=space, metric="score", mode="min")
    assert len(analysis.trials) == 25
    return analysis.get_best_config()


def with_tune() -> dict[str, Any]:
    """As a user of Ray Tune writes it, but for the Ray that it runs in."""
    from shoal.machine.cores import cores
    from shoal.parallel.ray_session import open_session

    session = open_session(cores())
    from ray import tune

    def training_function(config: dict[str, Any]) -> None:
        tune.report({"score": objective(config)})

    space = {"x": tune.grid_search(VALUES), "y": tune.grid_search(VALUES)}
    analysis = tune.run(
        training_function, config=space, metric="score", mode="min", reuse_actors=True, verbose=0, name="bare"
    )
    assert len(analysis.trials) == 25
    session.stop()
    best: dict[str, Any] = analysis.best_config
    return best


def measured(who: str) -> float:
    """Seconds of one sweep, with the start and the end of its Ray, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TUNE_"))}
        done = subprocess.run(
            [sys.executable, __file__, "--one", who],
            env={**variables, "HOME": home},
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["best"] == {"x": 0, "y": 0}, answer
    return float(answer["seconds"])


def main() -> None:
    """Measure in turn, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=["shoal", "tune"], help="run one sweep in this process and tell its time")
    parser.add_argument("--quick", action="store_true", help="one round, and nothing is kept")
    options = parser.parse_args()
    if options.one:
        started = perf_counter()
        best = with_shoal() if options.one == "shoal" else with_tune()
        print(json.dumps({"seconds": perf_counter() - started, "best": best}))
        return
    rounds = 1 if options.quick else options.rounds
    record = Record("tune", ("shoal",), {"trials": len(VALUES) ** 2, "rounds": rounds})
    seconds: dict[str, list[float]] = {"shoal": [], "tune": []}
    for _ in range(rounds):
        for who, kept in seconds.items():
            kept.append(measured(who))
        console.print({who: round(kept[-1], 2) for who, kept in seconds.items()})
    found = {who: spread(kept) for who, kept in seconds.items()}
    ratio = found["shoal"]["median"] / found["tune"]["median"]
    bars = [Bar("25 trivial trials, shoal beside bare Ray Tune", ratio, MOST, at_least=False, unit="x")]
    show_bars(bars)
    if not options.quick:
        record.keep({**found, "ratio": ratio}, bars)


if __name__ == "__main__":
    main()
