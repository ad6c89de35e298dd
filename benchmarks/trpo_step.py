"""Whether TRPO is sb3-contrib's where it means to be: the same batch and weights, and what each makes of them.

sb3-contrib samples some batches with its defaults and learns from them. shoal gets each batch with the weights from
before it and the same settings: its advantages, the direction and length of the policy's step, the KL divergence that
the step reaches, and the error of the values after their fit are put beside the peer's.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from lessons import SAME
from peers import ask
from record import Bar, Record, console, show_bars
from rich.table import Table

ENVS = ("Hopper-v5", "HalfCheetah-v5", "Swimmer-v5")
PER_NUMBER = {"max_kl": 0.01, "cg_damping": 0.1}  # the peer's own, which take the KL's mean over an action's numbers


def measure(env: str, iterations: int) -> list[dict[str, float]]:
    """Every iteration's comparison."""
    settings = {key: value for key, value in SAME["TRPO"].items() if key != "num_envs_per_worker"}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = str(Path(folder) / "batches.npz")
        ask("sb3", "steps", runner="sb3_step", env=env, iterations=iterations, file=file)
        asked: dict[str, Any] = {"iterations": iterations, "file": file, "settings": {**settings, **PER_NUMBER}}
        found: list[dict[str, float]] = ask("shoal", "steps", runner="shoal_step", **asked).answer["steps"]
        return found


def bars_of(rows: dict[str, list[dict[str, float]]]) -> list[Bar]:
    """The worst over all batches."""
    every = [each for steps in rows.values() for each in steps]
    return [
        Bar("advantages, largest difference in deviations", max(s["advantages_differ"] for s in every), 1e-3, False),
        Bar("cosine of the policy's step and the peer's", min(s["cosine"] for s in every), 0.999, True),
        Bar("KL reached, largest share of max_kl", max(s["kl"] / s["max_kl"] for s in every), 1.0, False),
    ]


def show(rows: dict[str, list[dict[str, float]]]) -> None:
    """Print one row for each batch."""
    heads = ("task", "batch", "cosine", "length / sb3's", "KL", "sb3's KL", "max_kl", "value error", "sb3's")
    table = Table(*heads, title="One TRPO step from the same batch and weights")
    for env, steps in rows.items():
        for count, each in enumerate(steps):
            names = ("cosine", "length", "kl", "sb3_kl", "max_kl", "value_error", "sb3_value_error")
            table.add_row(env, str(count), *(f"{each[name]:.5g}" for name in names))
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=ENVS)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    options = parser.parse_args()
    iterations = 1 if options.quick else options.iterations
    record = Record("trpo_step", ["shoal", "sb3"], {"iterations": iterations, **SAME["TRPO"], **PER_NUMBER})
    rows = {env: measure(env, iterations) for env in options.env}
    show(rows)
    show_bars(bars := bars_of(rows))
    if not options.quick:
        record.keep(rows, bars)


if __name__ == "__main__":
    main()
