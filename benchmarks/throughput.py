"""Steps per second of PPO on CartPole-v1 in shoal, Stable-Baselines3 and RLlib, on the same work, side by side.

Each case runs in a process and a virtual environment of its own, one after another; repeats are interleaved, so that a
machine that slows down slows all of them. Also: sampling against the bare environment, start-up, memory, one action.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import PEERS, ask, shoal_command
from record import Bar, Record, console, show_bars, spread
from rich.table import Table

WORK = {"batch": 4096, "minibatch": 256, "epochs": 10}
CUSTOM = "shoal, torch custom model"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    label: str
    who: str
    arguments: dict[str, Any]


CASES = (
    Case("shoal, 32 environments", "shoal", {"num_envs": 32}),
    Case("shoal, 64 environments", "shoal", {"num_envs": 64}),
    Case(f"{CUSTOM}, 64", "shoal", {"num_envs": 64, "custom_model": True}),
    Case("SB3, DummyVecEnv 32", "sb3", {"num_envs": 32}),
    Case("SB3, DummyVecEnv 64", "sb3", {"num_envs": 64}),
    Case("RLlib, in-process 8", "rllib", {"num_envs": 8}),
    Case("RLlib, in-process 32", "rllib", {"num_envs": 32}),
)


def measure_rates(who: Sequence[str], repeats: int, warmup: int, iterations: int) -> dict[str, Any]:
    """Overall, sampling and learning steps per second of each case."""
    cases = [case for case in CASES if case.who in who]
    seen: dict[str, list[dict[str, float]]] = {case.label: [] for case in cases}
    for repeat in range(repeats):
        for case in cases:
            console.print(f"  {repeat + 1}/{repeats} {case.label}", style="dim")
            ended = ask(case.who, "throughput", **WORK, **case.arguments, warmup=warmup, iterations=iterations)
            seen[case.label].append(ended.answer)
    return {
        label: {key: spread([each[key] for each in answers]) for key in ("overall", "sampling", "learning")}
        for label, answers in seen.items()
    }


def measure_startup(who: Sequence[str], repeats: int) -> dict[str, Any]:
    """Seconds from process start to the first finished iteration; RLlib is left out, it has no bar here."""
    seen: dict[str, list[float]] = {each: [] for each in who if each != "rllib"}
    for _ in range(repeats):
        for each, times in seen.items():
            ended = ask(each, "startup", **WORK, num_envs=64)
            times.append(ended.answer["finished_at"] - ended.started)
    return {each: spread(times) for each, times in seen.items()}


def measure_action(who: Sequence[str], repeats: int, calls: int) -> dict[str, Any]:
    """Microseconds of one `compute_single_action`, and of SB3's `predict`."""
    seen: dict[str, list[float]] = {each: [] for each in who if each != "rllib"}
    for _ in range(repeats):
        for each, times in seen.items():
            times.append(ask(each, "action", calls=calls).answer["us"])
    return {each: spread(times) for each, times in seen.items()}


def measure_sampling(repeats: int, iterations: int) -> dict[str, Any]:
    """Sampling alone, and its share of the bare environment's rate in the same process."""
    answers = [ask("shoal", "sampling", num_envs=64, batch=4096, iterations=iterations).answer for _ in range(repeats)]
    return {
        "sampling": spread([each["sampling"] for each in answers]),
        "bare": spread([each["bare"] for each in answers]),
        "share": spread([each["share"] for each in answers]),
    }


def measure_guard(repeats: int, rounds: int) -> dict[str, Any]:
    """What the check of every observation and reward adds to sampling."""
    answers = [ask("shoal", "guard", num_envs=64, steps=64, rounds=rounds).answer["extra"] for _ in range(repeats)]
    return {"extra": spread(answers)}


def measure_memory() -> float:
    """Peak MB of `shoal train CartPole-v1`, which takes the NumPy path."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        words = ("train", "CartPole-v1", "--stop", "timesteps_total=100000", "--new")
        return shoal_command(*words, results_dir=Path(folder)).peak_rss_mb


def best(rates: dict[str, Any], prefix: str, without: str = "none") -> float | None:
    """The highest median overall rate among the rows that begin with `prefix`."""
    found = [
        row["overall"]["median"] for label, row in rates.items() if label.startswith(prefix) and without not in label
    ]
    return max(found, default=None)


def bars_of(results: dict[str, Any]) -> list[Bar]:
    """Every bar for which both sides were measured."""
    bars = []
    rates, startup, action = results["rates"], results["startup"], results["action"]
    ours, custom = best(rates, "shoal", without="custom"), best(rates, CUSTOM)
    sb3, rllib = best(rates, "SB3"), best(rates, "RLlib")
    if ours and sb3:
        bars.append(Bar("throughput / SB3's best", ours / sb3, 3.5, at_least=True, unit="x"))
    if ours and rllib:
        bars.append(Bar("throughput / RLlib's best in-process", ours / rllib, 7.0, at_least=True, unit="x"))
    if custom and sb3:
        bars.append(Bar("torch custom model / SB3's best", custom / sb3, 1.5, at_least=True, unit="x"))
    if "sampling" in results:
        share = results["sampling"]["share"]["median"]
        bars.append(Bar("sampling / bare environment", share, 0.65, at_least=True))
    if "guard" in results:
        bars.append(Bar("guard, added to sampling", results["guard"]["extra"]["median"], 0.03, at_least=False))
    if {"shoal", "sb3"} <= startup.keys():
        ratio = startup["shoal"]["median"] / startup["sb3"]["median"]
        bars.append(Bar("first iteration / SB3's", ratio, 1 / 3, at_least=False))
    if {"shoal", "sb3"} <= action.keys():
        ratio = action["shoal"]["median"] / action["sb3"]["median"]
        bars.append(Bar("compute_single_action / SB3's predict", ratio, 1 / 3, at_least=False))
    if "peak_rss_mb" in results:
        bars.append(Bar("peak memory, NumPy path", results["peak_rss_mb"], 150, at_least=False, unit=" MB"))
    return bars


def show(results: dict[str, Any]) -> None:
    """Print what was measured."""
    table = Table(
        "case", "overall", "sampling", "learning", title="PPO, CartPole-v1: steps per second, median (low..high)"
    )
    for label, row in results["rates"].items():
        table.add_row(label, *(_cell(row[key]) for key in ("overall", "sampling", "learning")))
    console.print(table)
    table = Table("what", "who", "median (low..high)", title="Beside it")
    for who, times in results["startup"].items():
        table.add_row("process start to first iteration, s", who, _cell(times))
    for who, times in results["action"].items():
        table.add_row("one action, us", who, _cell(times))
    for key, value in results.get("sampling", {}).items():
        table.add_row(f"sampling alone: {key}", "shoal", _cell(value))
    if "peak_rss_mb" in results:
        table.add_row("peak memory, MB", "shoal", f"{results['peak_rss_mb']:.0f}")
    console.print(table)


def _cell(value: dict[str, float]) -> str:
    numbers = (f"{value[key]:,.0f}" if value[key] >= 100 else f"{value[key]:.3g}" for key in ("median", "low", "high"))
    return "{} ({}..{})".format(*numbers)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; the figures are worth nothing and not kept"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--who", nargs="+", choices=("shoal", *PEERS), default=["shoal", *PEERS])
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    warmup, iterations = (1, 2) if options.quick else (3, 20)
    settings = {**WORK, "warmup": warmup, "iterations": iterations, "repeats": repeats}
    record = Record("throughput", options.who, settings)
    results: dict[str, Any] = {
        "rates": measure_rates(options.who, repeats, warmup, iterations),
        "startup": measure_startup(options.who, repeats),
        "action": measure_action(options.who, repeats, calls=200 if options.quick else 5000),
    }
    if "shoal" in options.who:
        results["sampling"] = measure_sampling(repeats, iterations)
        results["guard"] = measure_guard(repeats, rounds=5 if options.quick else 60)
        results["peak_rss_mb"] = measure_memory()
    bars = bars_of(results)
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
