"""Steps per second of DQN on CartPole-v1 in shoal, Stable-Baselines3 and RLlib, at one update of 32 every 4 steps.

All have the plain algorithm (uniform replay, one step, no double or dueling Q) and a 64x64 relu network. Each library
runs with one environment and with eight, and each one's best is compared. Also: whether shoal's defaults solve
CartPole-v1.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import PEERS, ask, shoal_command
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

WORK = {
    "batch": 32,
    "fragment": 4,
    "intensity": 8,
    "learning_starts": 1000,
    "target_every": 500,
    "capacity": 50_000,
    "lr": 5e-4,
    "hiddens": [64, 64],
}
GOAL, MOST_STEPS = 475.0, 300_000
FULL = {"double_q": True, "dueling": True, "n_step": 3}
PRIORITIZED = {**FULL, "replay_buffer_config": {"capacity": 50_000, "prioritized_replay": True}}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    label: str
    who: str
    num_envs: int
    steps: int
    extra: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("shoal, 8 environments", "shoal", 8, 40_000),
    Case("shoal, 1 environment", "shoal", 1, 20_000),
    Case("shoal, 8, double, dueling, 3 steps", "shoal", 8, 40_000, {"extra": FULL}),
    Case("shoal, 8, the same with priorities", "shoal", 8, 40_000, {"extra": PRIORITIZED}),
    Case("SB3, 1 environment", "sb3", 1, 8_000),
    Case("SB3, 8 environments", "sb3", 8, 8_000),
    Case("RLlib, 1 environment", "rllib", 1, 2_000),
    Case("RLlib, 8 environments", "rllib", 8, 2_000),
)


def measure_rates(who: Sequence[str], repeats: int, share: float) -> dict[str, Any]:
    """Overall, sampling and learning steps per second of each case; repeats are interleaved."""
    cases = [case for case in CASES if case.who in who]
    seen: dict[str, list[dict[str, float]]] = {case.label: [] for case in cases}
    for repeat in range(repeats):
        for case in cases:
            console.print(f"  {repeat + 1}/{repeats} {case.label}", style="dim")
            counts = {"num_envs": case.num_envs, "warmup": 2000, "steps": int(case.steps * share)}
            seen[case.label].append(ask(case.who, "dqn", **WORK, **counts, **case.extra).answer)
    return {
        label: {key: spread([each[key] for each in answers]) for key in ("overall", "sampling", "learning")}
        for label, answers in seen.items()
    }


def solve(seed: int) -> dict[str, float | None]:
    """`shoal train CartPole-v1 --run DQN`: seconds from process start, and steps, until it is solved."""
    stops = ("--stop", f"episode_reward_mean={GOAL:g}", "--stop", f"timesteps_total={MOST_STEPS}")
    words = ("train", "CartPole-v1", "--run", "DQN", "--seed", str(seed), "--new", *stops)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ended = shoal_command(*words, results_dir=Path(folder))
    last = ended.answer
    if last["episode_reward_mean"] < GOAL or last["episodes_total"] < 100:
        return {"seconds": None, "timesteps": None}
    return {"seconds": ended.ended - ended.started, "timesteps": last["timesteps_total"]}


def best_rate(rates: dict[str, Any], library: str) -> float | None:
    """The median rate of a library's plain DQN at its best number of environments; None if it was not measured."""
    labels = [case.label for case in CASES if case.label.startswith(f"{library}, ") and not case.extra]
    return max((rates[label]["overall"]["median"] for label in labels if label in rates), default=None)


def bars_of(results: dict[str, Any]) -> list[Bar]:
    """Every bar for which both sides were measured."""
    bars, rates, solved = [], results["rates"], results["solved"]
    ours = best_rate(rates, "shoal")
    for peer, limit in (("SB3", 5.0), ("RLlib", 30.0)):
        theirs = best_rate(rates, peer)
        if ours is not None and theirs is not None:
            name = f"throughput / {peer}, each at its best number of environments"
            bars.append(Bar(name, ours / theirs, limit, at_least=True, unit="x"))
    if solved:
        count = sum(run["seconds"] is not None for run in solved)
        bars.append(Bar("seeds that solve CartPole-v1", count, len(solved), at_least=True))
    return bars


def show(results: dict[str, Any]) -> None:
    """Print what was measured."""
    table = Table("case", "overall", "sampling", "learning", title="DQN, CartPole-v1: steps per second, median")
    for label, row in results["rates"].items():
        table.add_row(label, *(f"{row[key]['median']:,.0f}" for key in ("overall", "sampling", "learning")))
    console.print(table)
    for seed, run in enumerate(results["solved"]):
        console.print(
            f"  seed {seed}: "
            + ("never" if run["seconds"] is None else "{seconds:.1f} s, {timesteps:,} steps".format(**run))
        )


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--who", nargs="+", choices=("shoal", *PEERS), default=["shoal", *PEERS])
    options = parser.parse_args()
    repeats, share, seeds = (1, 0.25, 0) if options.quick else (options.repeats, 1.0, options.seeds)
    record = Record("dqn", options.who, {**WORK, "repeats": repeats, "goal": GOAL, "most_steps": MOST_STEPS})
    results: dict[str, Any] = {"rates": measure_rates(options.who, repeats, share), "solved": []}
    if "shoal" in options.who:
        results["solved"] = [solve(seed) for seed in range(seeds)]
    bars = bars_of(results)
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
