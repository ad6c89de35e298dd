"""What a curriculum brings: the maze of `examples/maze_env.py`, with its stages and from its farthest cells alone.

Both have the same settings and steps, and are measured at the same: the share of episodes from the farthest cells that
reach the goal.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from peers import ROOT
from record import RESULTS, Bar, Record, console, show_bars
from rich.table import Table

import shoal
from shoal.config.experiment import config_tree, experiments_from_file

EXAMPLES = ROOT / "examples"
FARTHEST = 68
STEPS = 200_000
EVERY = 10  # iterations between evaluations
ARMS = ("curriculum", "hard task alone")

Curve = list[tuple[int, float]]


def learn(arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Steps and share of goals reached from the farthest cells, over training, and the stages passed."""
    (experiment,) = experiments_from_file(EXAMPLES / "maze.yml")
    stages = experiment.config.curriculum.stages if arm == "curriculum" else [{"task": FARTHEST}]
    config = {
        **config_tree(experiment.config),
        "curriculum": {"stages": list(stages)},
        "evaluation_config": {"task": FARTHEST, "explore": True},
        "seed": seed,
    }
    curve: Curve = []
    with shoal.PPO(config=config, search_path=[EXAMPLES]) as trainer:
        while trainer.timesteps_total < steps:
            result = trainer.train()
            if trainer.iteration % EVERY == 0:
                reached = trainer.evaluate(episodes=20)["episode_reward_mean"]
                curve.append((result["timesteps_total"], reached))
    console.print(f"  {arm}, seed {seed}: {curve[-1][1]:.2f}, {result['stages_passed']} stages", style="dim")
    return {"curve": curve, "stages_passed": result["stages_passed"]}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The end of each seed, and when it first reached the goal in nine of ten episodes."""
    solved = [next((steps for steps, share in run["curve"] if share >= 0.9), None) for run in runs]
    return {
        "final": [run["curve"][-1][1] for run in runs],
        "mean": statistics.fmean(run["curve"][-1][1] for run in runs),
        "solved_at": solved,
        "runs": runs,
    }


def plot(results: dict[str, dict[str, Any]]) -> None:
    """Draw every seed, and the mean of each arm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3), layout="constrained")
    for arm, colour in zip(ARMS, ("tab:blue", "tab:orange"), strict=True):
        curves = [run["curve"] for run in results[arm]["runs"]]
        for curve in curves:
            axis.plot(*zip(*curve, strict=True), color=colour, alpha=0.25, linewidth=1)
        rows = list(zip(*curves, strict=True))
        means = [statistics.fmean(share for _, share in row) for row in rows]
        axis.plot([row[0][0] for row in rows], means, color=colour, label=arm)
    axis.set(title=f"A maze, from {FARTHEST} steps away", xlabel="environment steps", ylabel="episodes at the goal")
    axis.legend()
    figure.savefig(RESULTS / "curriculum.png", dpi=80)
    pyplot.close(figure)


def main() -> None:
    """Measure, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one seed; nothing is kept")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    seeds, steps = (1, STEPS // 10) if options.quick else (options.seeds, STEPS)
    record = Record("curriculum", ["shoal"], {"farthest": FARTHEST, "steps": steps, "seeds": seeds})
    results = {arm: summary([learn(arm, seed, steps) for seed in range(seeds)]) for arm in ARMS}
    table = Table("", "goals reached at the end, mean", "each", "nine of ten reached after", title="From far away")
    for arm in ARMS:
        found = results[arm]
        when = ", ".join("never" if at is None else f"{at:,}" for at in found["solved_at"])
        table.add_row(arm, f"{found['mean']:.2f}", ", ".join(f"{value:.2f}" for value in found["final"]), when)
    console.print(table)
    ahead = results[ARMS[0]]["mean"] - results[ARMS[1]]["mean"]
    bars = [Bar("goals reached with the curriculum less those without", ahead, 0.5, at_least=True)]
    show_bars(bars)
    if not options.quick:
        plot(results)
        record.keep(results, bars)


if __name__ == "__main__":
    main()
