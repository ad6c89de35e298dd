"""How long a save holds up training, how long it takes, and what it costs in memory and on the disk.

A replay of a million transitions (17 observations, 6 actions, as HalfCheetah's) that is full, with 10,000 new ones
between two saves. Beside shoal: torch.save of the same arrays (synced and renamed), and Stable-Baselines3's own two
calls, which sync nothing. `SHOAL_BENCH_DISK` names a folder on another disk.

    python benchmarks/checkpoints.py            keeps benchmarks/results/checkpoints.json
    python benchmarks/checkpoints.py --quick    a twentieth of it, kept nowhere
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars
from rich.table import Table

SETTINGS = {"transitions": 1_000_000, "obs": 17, "actions": 6, "new": 10_000, "params": 200_000, "saves": 5}
WHO = {"shoal": ("shoal", "save", "save_shoal"), "torch.save": ("shoal", "torch_save", "save_shoal")}
WITH_SB3 = {**WHO, "Stable-Baselines3": ("sb3", "save", "save_sb3")}
FIGURES = {
    "blocked_s": "blocked, s",
    "total_s": "total, s",
    "extra_mb": "extra memory, MB",
    "written_mb": "written, MB",
}


def medians(saves: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the saves."""
    return {name: median(each[name] for each in saves) for name in FIGURES}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small replay; the figures are not kept")
    parser.add_argument("--no-peers", action="store_true", help="leave out Stable-Baselines3")
    options = parser.parse_args()
    settings = {**SETTINGS, "transitions": 50_000, "new": 500, "saves": 2} if options.quick else SETTINGS
    who = WHO if options.no_peers else WITH_SB3
    record = Record("checkpoints", sorted({each for each, _, _ in who.values()}), settings)
    results: dict[str, Any] = {}
    table = Table("who", "save", *FIGURES.values(), title=f"{settings['transitions']:,} transitions")
    for name, (venv, task, runner) in who.items():
        found = results[name] = ask(venv, task, runner, **settings).answer
        found["median"] = medians(found["next"])
        for which in ("first", "median"):
            label = "the first" if which == "first" else "later"
            table.add_row(name, label, *(f"{found[which][figure]:.3g}" for figure in FIGURES))
    console.print(table)
    ours, torch = results["shoal"]["median"], results["torch.save"]["median"]
    share = settings["new"] / settings["transitions"]
    bars = [
        Bar("blocked, of torch.save's time", ours["blocked_s"] / torch["blocked_s"], 0.1, at_least=False),
        Bar("written, of torch.save's bytes", ours["written_mb"] / torch["written_mb"], share + 0.09, at_least=False),
    ]
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
