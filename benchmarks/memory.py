"""How much memory shoal needs: copies of a batch of 1 MiB observations, and what a long run holds over time.

Peak memory is taken at two batch sizes with everything else alike. Its slope against the batch's own bytes is the
number of copies of the batch that exist at once; the interpreter, torch and the network fall out of the difference.
"""

from __future__ import annotations

import argparse
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars
from rich.table import Table

OBS_MB = 2**20 / 1e6
SETTINGS = {"minibatch": 8, "num_envs": 4}


def measure_copies(batches: tuple[int, int]) -> dict[str, Any]:
    """Peak memory at both batch sizes, and the copies of a batch that it shows."""
    peaks = {batch: ask("shoal", "images", batch=batch, **SETTINGS).answer["peaks_mb"] for batch in batches}
    small, large = batches
    copies = (peaks[large][-1] - peaks[small][-1]) / ((large - small) * OBS_MB)
    return {"peaks_mb": {str(batch): values for batch, values in peaks.items()}, "copies": copies}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small batches and few steps; the figures are not kept")
    options = parser.parse_args()
    batches = (16, 48) if options.quick else (64, 320)
    steps, every = (40_000, 10_000) if options.quick else (1_000_000, 100_000)
    record = Record("memory", ["shoal"], {**SETTINGS, "batches": batches, "steps": steps})

    copies = measure_copies(batches)
    table = Table("batch, MB of observations", "peak after each iteration, MB", title="1 MiB observations")
    for batch, peaks in copies["peaks_mb"].items():
        table.add_row(f"{int(batch) * OBS_MB:.0f}", " ".join(f"{peak:.0f}" for peak in peaks))
    console.print(table)

    held = ask("shoal", "long_run", steps=steps, every=every).answer["held_mb"]
    table = Table("steps", "memory held, MB", title="CartPole-v1")
    for at, megabytes in held:
        table.add_row(f"{at:,}", f"{megabytes:.1f}")
    console.print(table)

    bars = [
        Bar("copies of a batch held at once", copies["copies"], 1.25, at_least=False),
        Bar("growth over the run, after its first tenth", held[-1][1] - held[0][1], 2.0, at_least=False, unit=" MB"),
    ]
    show_bars(bars)
    if not options.quick:
        record.keep({"images": copies, "held_mb": held}, bars)


if __name__ == "__main__":
    main()
