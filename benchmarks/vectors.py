"""PPO whose environments step as one: steps per CPU second, and the time until CartPole-v1 is solved.

Rates on CartPole-v1: 1024 environments, batches of 65,536 steps, large minibatches and one or two epochs, with
Gymnasium's vector class and with a pool of EnvPool in one thread; beside them 64 environments in Python with the same
large minibatches. On MuJoCo's HalfCheetah-v5 and on Pendulum-v1: EnvPool's pool beside environments in Python, with the
same settings; Breakout's frames are in `images.py`. The settings take turns; CPU seconds are those of all threads of a
process. Solved (mean return of the last 100 episodes of 475): `shoal train CartPole-v1` as it is, and with 128 native
environments, from process start to its end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from peers import ask, shoal_command
from record import Bar, Record, console, show_bars, with_interval
from rich.table import Table

BATCH, GOAL = 65_536, 475.0
ONE_EPOCH = {"train_batch_size": BATCH, "sgd_minibatch_size": 8192, "num_sgd_iter": 1, "kernel": "compiled"}
TWO_EPOCHS = {**ONE_EPOCH, "sgd_minibatch_size": 4096, "num_sgd_iter": 2}
NATIVE = {"vectorization": "native", "num_envs_per_worker": 1024}
POOL = {"vectorization": "envpool", "num_envs_per_worker": 1024, "env_config": {"num_threads": 1}}
PYTHON = {"vectorization": "python", "num_envs_per_worker": 64}
WORK: dict[str, dict[str, Any]] = {
    "native, 1 epoch of 8192": {**NATIVE, **ONE_EPOCH},
    "native, 2 epochs of 4096": {**NATIVE, **TWO_EPOCHS},
    "native, 1 epoch of 8192, NumPy": {**NATIVE, **ONE_EPOCH, "kernel": "numpy"},
    "envpool, 1 epoch of 8192": {**POOL, **ONE_EPOCH},
    "envpool, 2 epochs of 4096": {**POOL, **TWO_EPOCHS},
    "python, 1 epoch of 8192": {**PYTHON, **ONE_EPOCH},
}
POOLED = {"num_envs_per_worker": 64, "train_batch_size": 16_384, "sgd_minibatch_size": 2048, "num_sgd_iter": 2}
IN_PYTHON, IN_A_POOL = {"vectorization": "python"}, {"vectorization": "envpool", "env_config": {"num_threads": 1}}
for env in ("HalfCheetah-v5", "Pendulum-v1"):
    for name, how in (("python", IN_PYTHON), ("envpool", IN_A_POOL)):
        WORK[f"{env}, {name}, 2 epochs of 2048"] = {"env": env, "kernel": "compiled", **POOLED, **how}
LIMITS = {"native, 1 epoch of 8192": 350_000.0, "native, 2 epochs of 4096": 300_000.0}
FAST = (
    *("vectorization=native", "num_envs_per_worker=128", "train_batch_size=4096", "sgd_minibatch_size=512"),
    *("num_sgd_iter=4", "lr=0.003", "kernel=compiled"),
)


def rates(rounds: int, iterations: int) -> dict[str, Any]:
    """Steps per CPU second and per second of each setting, in turns."""
    seen: dict[str, dict[str, list[float]]] = {name: {"per_cpu_s": [], "per_s": []} for name in WORK}
    for count in range(rounds):
        for name, work in WORK.items():
            console.print(f"  {count + 1}/{rounds} {name}", style="dim")
            answer = ask("shoal", "rate", runner="vectors", iterations=iterations, work=work).answer
            for unit, found in seen[name].items():
                found.append(answer[unit])
    return {name: {unit: with_interval(found) for unit, found in units.items()} for name, units in seen.items()}


def solved(seeds: int) -> dict[str, list[dict[str, float]]]:
    """Seconds from process start to its end, steps and the last mean return, with defaults and with native vectors."""
    settings: dict[str, tuple[str, ...]] = {"defaults": (), "128 native environments": FAST}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in settings}
    for seed in range(seeds):
        for name, keys in settings.items():
            console.print(f"  seed {seed} {name}", style="dim")
            words = [word for key in keys for word in ("--set", key)]
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                ended = shoal_command(
                    "train", "CartPole-v1", "--seed", str(seed), "--new", *words, results_dir=Path(folder)
                )
            last = ended.answer
            if last["episode_reward_mean"] < GOAL:
                raise SystemExit(f"{name}, seed {seed}: ended at a mean return of {last['episode_reward_mean']}")
            found[name].append({"seconds": ended.ended - ended.started, "timesteps": last["timesteps_total"]})
    return found


def show(results: dict[str, Any]) -> None:
    """Print what was measured."""
    table = Table("PPO on CartPole-v1, if nothing else is named", "steps per CPU second", "95 %", "steps per second")
    for name, units in results["rates"].items():
        cpu = units["per_cpu_s"]
        table.add_row(
            name,
            f"{cpu['median']:,.0f}",
            f"{cpu['low']:,.0f} .. {cpu['high']:,.0f}",
            f"{units['per_s']['median']:,.0f}",
        )
    console.print(table)
    table = Table("solved", "seconds, median", "each seed, s", "each seed, steps")
    for name, runs in results["solved"].items():
        seconds = [run["seconds"] for run in runs]
        steps = " ".join(f"{run['timesteps']:,.0f}" for run in runs)
        table.add_row(name, f"{statistics.median(seconds):.1f}", " ".join(f"{s:.1f}" for s in seconds), steps)
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rounds, iterations, seeds = (1, 3, 1) if options.quick else (options.rounds, 15, options.seeds)
    record = Record("vectors", ["shoal"], {"work": WORK, "fast": FAST, "rounds": rounds, "iterations": iterations})
    results = {"rates": rates(rounds, iterations), "solved": solved(seeds)}
    bars = []
    for name, limit in LIMITS.items():
        bars.append(Bar(f"{name}: steps per CPU second", results["rates"][name]["per_cpu_s"]["median"], limit, True))
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
