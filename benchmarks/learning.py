"""Final returns of shoal and Stable-Baselines3 with the same settings and steps, on four classic tasks, with curves.

The settings are the zoo's, without its observation normalisation, state-dependent noise and clip schedules, which the
two do differently. shoal's actions are not rescaled (`normalize_actions: False`), as SB3's are not.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from peers import ask, python_of
from record import RESULTS, Record, console
from rich.table import Table

WHO = ("shoal", "sb3")
SHARED = {
    "clip_param": 0.2,
    "entropy_coeff": 0.0,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": None,
    "kl_coeff": 0.0,
    "grad_clip": 0.5,
    "normalize_actions": False,
    "clip_actions": True,
}


@dataclass(frozen=True)
class Lesson:
    """One environment with its settings, in shoal's words."""

    env: str
    iterations: int
    config: dict[str, Any]


def lesson(env: str, num_envs: int, fragment: int, iterations: int, falling_lr: bool = False, **config: Any) -> Lesson:
    """A lesson of `iterations` batches of `fragment` steps in each environment."""
    batch = num_envs * fragment
    whole = {**SHARED, "num_envs_per_worker": num_envs, "train_batch_size": batch, "lr": 3e-4, **config}
    if falling_lr:
        whole["lr_schedule"] = [[0, whole["lr"]], [batch * iterations, 0.0]]
    return Lesson(env, iterations, whole)


LESSONS = (
    lesson(
        "CartPole-v1", 8, 32, 390, falling_lr=True,
        sgd_minibatch_size=256, num_sgd_iter=20, lr=1e-3, gamma=0.98, lambda_=0.8,
    ),
    lesson("Acrobot-v1", 16, 256, 49, sgd_minibatch_size=64, num_sgd_iter=4, gamma=0.99, lambda_=0.94),
    lesson("Pendulum-v1", 4, 1024, 49, sgd_minibatch_size=64, num_sgd_iter=10, lr=1e-3, gamma=0.9, lambda_=0.95),
    lesson(
        "LunarLander-v3", 16, 1024, 31,
        sgd_minibatch_size=64, num_sgd_iter=4, gamma=0.999, lambda_=0.98, entropy_coeff=0.01,
    ),
)  # fmt: skip

Curve = list[tuple[int, float | None]]


def learn(lessons: list[Lesson], who: list[str], seeds: range, jobs: int) -> dict[str, dict[str, list[Curve]]]:
    """The curve of each environment, library and seed; `jobs` processes at once, for only returns count here."""

    def one(task: tuple[Lesson, str, int]) -> Curve:
        taught, name, seed = task
        ended = ask(name, "learn", env=taught.env, seed=seed, iterations=taught.iterations, config=taught.config)
        curve: Curve = ended.answer["curve"]
        console.print(f"  {taught.env} {name} seed {seed}: {curve[-1][1]}", style="dim")
        return curve

    tasks = [(taught, name, seed) for taught in lessons for seed in seeds for name in who]
    for name in who:
        python_of(name)
    with ThreadPoolExecutor(jobs) as pool:
        curves = list(pool.map(one, tasks))
    grouped: dict[str, dict[str, list[Curve]]] = {taught.env: {name: [] for name in who} for taught in lessons}
    for (taught, name, _), curve in zip(tasks, curves, strict=True):
        grouped[taught.env][name].append(curve)
    return grouped


WINDOWS: dict[str, Callable[[Curve], float | None]] = {
    "last 100 episodes": lambda curve: curve[-1][1],
    # A hundred episodes alone are noisy (on Pendulum a run's mean moves by 50 from one hundred to the next).
    "second half of training": lambda curve: _mean_from(curve, curve[-1][0] / 2),
}


def summary(curves: dict[str, list[Curve]], of: Callable[[Curve], float | None]) -> dict[str, Any]:
    """Mean returns over the seeds where all have enough episodes, and where shoal's mean lies in SB3's spread."""
    finals = {name: [of(curve) for curve in runs] for name, runs in curves.items()}
    known = {name: [value for value in values if value is not None] for name, values in finals.items()}
    whole: dict[str, Any] = {
        name: {
            "each": finals[name],
            "mean": statistics.fmean(values),
            "stdev": statistics.stdev(values) if len(values) > 1 else 0.0,
            "low": min(values),
            "high": max(values),
        }
        for name, values in known.items()
        if len(values) == len(finals[name])
    }
    if set(WHO) <= whole.keys():
        ours, theirs = whole["shoal"]["mean"], whole["sb3"]
        whole["verdict"] = "below" if ours < theirs["low"] else "above" if ours > theirs["high"] else "inside"
    return whole


def kept_curves(settings: dict[str, Any]) -> dict[str, list[Curve]]:
    """SB3's curves of the last whole run, which our changes do not touch; its settings must be the same."""
    kept = json.loads((RESULTS / "learning.json").read_text())
    if kept["settings"] != json.loads(json.dumps(settings)):
        raise SystemExit("the kept curves are of other settings: run without --again")
    return {env: found["sb3"] for env, found in kept["results"]["curves"].items()}


def show(results: dict[str, Any], window: str) -> None:
    """Print one row for each environment."""
    table = Table("environment", "shoal (low..high)", "SB3 (low..high)", "shoal is", title=f"Mean return, {window}")
    for env, found in results.items():
        cells = ("{mean:.1f} ({low:.1f}..{high:.1f})".format(**found[name]) if name in found else "-" for name in WHO)
        table.add_row(env, *cells, found.get("verdict", "-"))
    console.print(table)


def plot(curves: dict[str, dict[str, list[Curve]]], name: str) -> None:
    """Draw the mean over the seeds and the band from lowest to highest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(4 * len(curves), 3), squeeze=False, layout="constrained")
    for axis, (env, by_who) in zip(axes[0], curves.items(), strict=True):
        for who, colour in zip(WHO, ("tab:blue", "tab:orange"), strict=True):
            rows = list(zip(*by_who.get(who, []), strict=True))
            known = [(row[0][0], [mean for _, mean in row if mean is not None]) for row in rows]
            known = [(steps, means) for steps, means in known if means]
            steps = [each for each, _ in known]
            axis.plot(steps, [statistics.fmean(means) for _, means in known], color=colour, label=who)
            lowest, highest = [min(means) for _, means in known], [max(means) for _, means in known]
            axis.fill_between(steps, lowest, highest, color=colour, alpha=0.2, linewidth=0)
        axis.set(title=env, xlabel="environment steps")
    axes[0][0].set_ylabel("return, last 100 episodes")
    axes[0][0].legend()
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png", dpi=70)
    pyplot.close(figure)


def _mean_from(curve: Curve, steps: float) -> float | None:
    known = [mean for at, mean in curve if at > steps and mean is not None]
    return statistics.fmean(known) if known else None


def _thinned(curve: Curve, points: int = 40) -> Curve:
    stride = -(-len(curve) // points)
    return curve[::-stride][::-1]


def main() -> None:
    """Measure, print, draw and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one seed; nothing is kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument(
        "--env", nargs="+", choices=[each.env for each in LESSONS], default=[each.env for each in LESSONS]
    )
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO))
    parser.add_argument("--again", action="store_true", help="shoal alone, beside the SB3 curves that are kept already")
    options = parser.parse_args()
    lessons = [each for each in LESSONS if each.env in options.env]
    seeds = range(options.seeds)
    if options.quick:
        lessons, seeds = [Lesson(each.env, each.iterations // 10, each.config) for each in lessons], range(1)
    settings = {each.env: {"iterations": each.iterations, **each.config} for each in lessons}
    record = Record("learning", options.who, {"seeds": list(seeds), **settings})
    curves = learn(lessons, ["shoal"] if options.again else options.who, seeds, options.jobs)
    if options.again:
        for env, found in kept_curves(record.head["settings"]).items():
            curves[env]["sb3"] = found
    thin = {env: {who: [_thinned(c) for c in runs] for who, runs in found.items()} for env, found in curves.items()}
    results = {window: {env: summary(by_who, of) for env, by_who in thin.items()} for window, of in WINDOWS.items()}
    for window, found in results.items():
        show(found, window)
    if not options.quick:
        plot(curves, "learning")
        record.keep({**results, "curves": thin}, [])


if __name__ == "__main__":
    main()
