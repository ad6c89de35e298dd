"""9x9 Go with TRPO (`examples/trpo`): what workers bring against GNU Go, and how well it plays.

speedup: iterations of 400 steps of the same 8 games against GNU Go, by one process, by 1, 2 and 4 workers, by the same
under `shoal launch` on this host, and with each environment in a process of its own; the weights of all are compared.
play: training against random play, and then
games against random play and against the weakest setting of each program that is here, which it has never met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from peers import ROOT
from record import RESULTS, Bar, Record, console, show_bars, spread
from rich.table import Table

import shoal

GO = f"{ROOT / 'examples' / 'trpo' / 'go_env.py'}:Go9x9"
NETWORK = {"fcnet_hiddens": [244, 81]}
NUM_ENVS, BATCH, LEVEL = 8, 400, 1
LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {"num_workers": 0, "num_envs_per_worker": NUM_ENVS},
    "1 worker": {"num_workers": 1, "num_envs_per_worker": NUM_ENVS},
    "2 workers": {"num_workers": 2, "num_envs_per_worker": NUM_ENVS // 2},
    "4 workers": {"num_workers": 4, "num_envs_per_worker": NUM_ENVS // 4, "num_cpus_per_worker": 0.5},
    "environments in processes": {"num_envs_per_worker": NUM_ENVS, "env_isolation": "process"},
}
LAUNCHED = {f"{name}, shoal launch": name for name in LAYOUTS if "worker" in name}
WEAKEST = {"gnugo": 0, "pachi": 500}
LEARNING = {
    "train_batch_size": 2000,
    "num_envs_per_worker": NUM_ENVS,
    "batch_mode": "complete_episodes",
    "max_kl": 0.05,
    "model": NETWORK,
}
EVERY = 5  # iterations between the points of a curve


def measure(layout: str, iterations: int, batch: int) -> tuple[list[float], Any]:
    """Seconds of each iteration after the first, and the weights after the last."""
    config = {
        "env_config": {"opponent": "gnugo", "level": LEVEL},
        "train_batch_size": batch,
        "model": NETWORK,
        "log_level": "ERROR",
        **LAYOUTS[layout],
    }
    seconds = []
    with shoal.TRPO(env=GO, config=config) as trainer:
        for _ in range(iterations + 1):
            started = perf_counter()
            result = trainer.train()
            seconds.append(perf_counter() - started)
        assert result["env_failures_total"] == 0
        return seconds[1:], trainer.get_policy().network.params.copy()


def measure_launched(layout: str, iterations: int, batch: int) -> tuple[list[float], Any]:
    """The same of the command, in a cluster that `shoal launch` starts on this host."""
    told = {"env_config.opponent": "gnugo", "env_config.level": LEVEL, "train_batch_size": batch, **LAYOUTS[layout]}
    settings = [word for name, value in told.items() for word in ("--set", f"config.{name}={value}")]
    settings += ["--set", f"config.model.fcnet_hiddens={NETWORK['fcnet_hiddens']}"]
    shoal_command = str(Path(sys.executable).with_name("shoal"))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        train = [shoal_command, "train", GO, "--run", "TRPO", "--name", "go", "--results-dir", folder, *settings]
        stop = ["--stop", f"training_iteration={iterations + 1}"]
        command = [shoal_command, "launch", "--num-cpus", "3", "--", *train, *stop]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{layout}: {done.stdout}{done.stderr}")
        (results,) = Path(folder).glob("go/*/result.json")
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        weights = shoal.Policy.load(results.parent).network.params.copy()
    return [line["time_this_iter_s"] for line in lines[1:]], weights


def speedups(repeats: int, iterations: int, batch: int) -> dict[str, Any]:
    """Seconds per iteration of every layout, its speed beside one process's, and how far its weights are."""
    seen: dict[str, list[float]] = {layout: [] for layout in (*LAYOUTS, *LAUNCHED)}
    weights: dict[str, Any] = {}
    for repeat in range(repeats):
        for layout in seen:
            console.print(f"  {repeat + 1}/{repeats} {layout}", style="dim")
            if layout in LAUNCHED:
                seconds, weights[layout] = measure_launched(LAUNCHED[layout], iterations, batch)
            else:
                seconds, weights[layout] = measure(layout, iterations, batch)
            seen[layout].append(statistics.fmean(seconds))
    alone, alike = statistics.median(seen["one process"]), weights["one process"]
    return {
        layout: {
            "seconds": spread(each),
            "speedup": alone / statistics.median(each),
            "largest_difference_of_a_weight": float(np.abs(weights[layout] - alike).max()),
        }
        for layout, each in seen.items()
    }


def share_won(trainer: Any, games: int, explore: bool = False, **env_config: Any) -> float:
    """The share of games that the trained policy wins."""
    config = {
        **trainer.config.model_dump(include={"model", "seed"}),
        "env_config": env_config,
        "num_envs_per_worker": 4,
        "evaluation_config": {"explore": explore},
    }
    with shoal.TRPO(env=GO, config=config) as player:
        player.get_policy().set_weights(trainer.get_policy().get_weights())
        return float(player.evaluate(episodes=games)["custom_metrics"]["win_mean"])


def learn(seed: int, steps: int, games: int) -> dict[str, Any]:
    """The share of games won over training against random play, and at its end against every opponent there is."""
    config = {"env_config": {"opponent": "random"}, **LEARNING, "seed": seed}
    curve: list[tuple[int, float]] = []
    with shoal.TRPO(env=GO, config=config) as trainer:
        untrained = share_won(trainer, games, explore=True, opponent="random")
        while trainer.timesteps_total < steps:
            result = trainer.train()
            if trainer.iteration % EVERY == 0:
                curve.append((result["timesteps_total"], result["custom_metrics"]["win_mean"]))
                console.print(f"  seed {seed}: {curve[-1][0]:,} steps, {curve[-1][1]:.2f} won", style="dim")
        found = {"untrained": untrained, "random": share_won(trainer, games, opponent="random")}
        found["random, sampled actions"] = share_won(trainer, games, explore=True, opponent="random")
        for program, level in WEAKEST.items():
            try:
                found[f"{program} level {level}"] = share_won(trainer, games, opponent=program, level=level)
            except shoal.ShoalError as error:
                console.print(f"  {program}: {error}", style="dim")
    console.print(f"  seed {seed}: {found}", style="dim")
    return {"curve": curve, "share_won": found}


def plot_speedup(faster: dict[str, Any]) -> None:
    """Draw the speed-up by workers."""
    figure, left = new_figure()
    workers = (1, 2, 4)
    names = [f"{n} worker{'s' if n > 1 else ''}" for n in workers]
    left.plot(workers, workers, color="0.7", linestyle="--", label="as many times as workers")
    cores = len(os.sched_getaffinity(0))
    left.axhline(cores, color="0.85", linewidth=1)
    for where, color in (("", "tab:blue"), (", shoal launch", "tab:orange")):
        measured = [faster[f"{name}{where}"]["speedup"] for name in names]
        left.plot(workers, measured, "o-", color=color, label=f"measured, {cores} cores{where}")
    left.axhline(faster["environments in processes"]["speedup"], color="tab:green", linewidth=1, label="in processes")
    left.set(title="TRPO against GNU Go", xlabel="workers", ylabel="times one process", xticks=workers, ylim=(0, 4.2))
    left.legend(fontsize=8)
    figure.savefig(RESULTS / "go_speedup.png", dpi=80)


def plot_play(runs: list[dict[str, Any]]) -> None:
    """Draw what is won against random play, one line for each seed."""
    figure, right = new_figure()
    for run in runs:
        right.plot(*zip(*run["curve"], strict=True), color="tab:blue", linewidth=1)
    right.axhline(0.5, color="0.7", linestyle="--")
    right.set(title="TRPO against random play", xlabel="environment steps", ylabel="games won", ylim=(0, 1))
    figure.savefig(RESULTS / "go_play.png", dpi=80)


def new_figure() -> tuple[Any, Any]:
    """A figure and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(5, 3), layout="constrained")


def show_speedup(faster: dict[str, Any]) -> None:
    """Print one row for each layout."""
    table = Table(
        "layout", "seconds", "times one process", "weights", title=f"{BATCH} steps against GNU Go, level {LEVEL}"
    )
    for layout, row in faster.items():
        seconds = "{median:.2f} ({low:.2f}..{high:.2f})".format(**row["seconds"])
        table.add_row(layout, seconds, f"{row['speedup']:.2f}", f"{row['largest_difference_of_a_weight']:.1e}")
    console.print(table)


def show_play(runs: list[dict[str, Any]]) -> None:
    """Print one row for each opponent."""
    table = Table("against", "games won, each seed", title="After training against random play")
    for opponent in runs[0]["share_won"]:
        table.add_row(opponent, ", ".join(f"{run['share_won'][opponent]:.2f}" for run in runs))
    console.print(table)


def main() -> None:
    """Measure, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=("speedup", "play"), default=["speedup", "play"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--games", type=int, default=100)
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seeds, options.steps, options.games = 1, 1, 2000, 4
    iterations, batch = (1, 24) if options.quick else (3, BATCH)
    if "speedup" in options.what:
        settings = {"num_envs": NUM_ENVS, "batch": batch, "level": LEVEL, "iterations": iterations}
        record = Record("go_speedup", ["shoal"], {**settings, "repeats": options.repeats})
        faster = speedups(options.repeats, iterations, batch)
        bars = [Bar("2 workers / one process", faster["2 workers"]["speedup"], 1.6, at_least=True, unit="x")]
        show_speedup(faster)
        show_bars(bars)
        if not options.quick:
            plot_speedup(faster)
            record.keep(faster, bars)
    if "play" in options.what:
        settings = {**LEARNING, "seeds": options.seeds, "steps": options.steps, "games": options.games}
        record = Record("go_play", ["shoal"], settings)
        runs = [learn(seed, options.steps, options.games) for seed in range(options.seeds)]
        lowest = min(run["share_won"]["random"] for run in runs)
        bars = [Bar("games won against random play, lowest seed", lowest, 0.5, at_least=True)]
        show_play(runs)
        show_bars(bars)
        if not options.quick:
            plot_play(runs)
            record.keep({"runs": runs}, bars)


if __name__ == "__main__":
    main()
