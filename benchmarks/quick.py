"""The table of a quarter of an hour: shoal beside Stable-Baselines3, sbx, EnvPool and RLtools on six kinds of work.

All do the same work in one process: the same environments, batches, minibatches, passes and networks. Within a work the
libraries take turns, so that what else the machine does meets all of them, and shoal's ratio to another library is that
of one turn. Given are medians and, behind them, between which two values the true median lies with 95 % certainty; of
fewer than six turns these are the lowest and the highest. CPU seconds are those of all threads of a process, after one
iteration for warming up (RLtools and sbx compile in it). Turns go on while there is time for another.

The table stands in `results/quick.md`, to be pasted, and what it is made of in `results/quick.json`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from peers import ask, python_of
from record import RESULTS, Bar, Record, console, show_bars, with_interval

MINUTES = 14.0  # of turns; the rest is for what comes before and after
MOST_TURNS = 5
PEERS = ("sb3", "sbx", "rltools")
SAC = {"num_envs": 1, "batch": 256, "learning_starts": 100, "warmup": 300, "hiddens": [256, 256]}
FRAMES = {"frames": "envpool", "warmup": 1024, "steps": 2048}
SMALL = {"num_envs": 64, "batch": 4096, "minibatch": 256, "epochs": 10}
CHEETAH = {"env": "HalfCheetah-v5", "num_envs": 8, "batch": 4096, "minibatch": 256, "epochs": 10}
MANY = {"env": "CartPole-v1", "num_envs": 1024, "batch": 65_536, "minibatch": 8192, "epochs": 1}
SHOAL, NUMPY = "shoal, compiled kernel", "shoal"
POOL = "shoal, EnvPool, compiled kernel"

Rates = dict[str, list[float]]


@dataclass(frozen=True)
class Side:
    """How one library does a work."""

    who: str
    runner: str
    task: str
    arguments: dict[str, Any]

    @classmethod
    def shoal(cls, work: dict[str, Any], iterations: int, **extra: Any) -> Side:
        """PPO in shoal, with more settings."""
        return cls("shoal", "quick_shoal", "ppo", {**work, "iterations": iterations, "extra": extra})

    @classmethod
    def sb3(cls, work: dict[str, Any], iterations: int, **more: Any) -> Side:
        """PPO in Stable-Baselines3."""
        own = {"library": "stable_baselines3", "iterations": iterations}
        return cls("sb3", "quick_sb3", "ppo", {**work, **own, **more})

    @classmethod
    def sbx(cls, work: dict[str, Any], iterations: int) -> Side:
        """PPO in sbx."""
        return cls("sbx", "quick_sb3", "ppo", {**work, "library": "sbx", "iterations": iterations})


@dataclass(frozen=True)
class Work:
    """What is done, and by whom; the first is what the others are held against."""

    name: str
    sides: dict[str, Side] = field(default_factory=dict)


def works() -> list[Work]:
    """All of them."""
    cartpole, pendulum = {"env": "CartPole-v1", **SMALL}, {"env": "Pendulum-v1", **SMALL}
    rltools = {"num_envs": 64, "steps_per_env": 64, "minibatch": 256, "epochs": 10, "activation": "tanh"}
    compiled = {"kernel": "compiled"}
    return [
        Work(
            "PPO, CartPole-v1, 64 environments, minibatches of 256, 10 passes",
            {
                SHOAL: Side.shoal(cartpole, 12, **compiled),
                NUMPY: Side.shoal(cartpole, 12),
                "SB3": Side.sb3(cartpole, 4),
                "sbx": Side.sbx(cartpole, 6),
            },
        ),
        Work(
            "PPO, Pendulum-v1, 64 environments, minibatches of 256, 10 passes",
            {
                SHOAL: Side.shoal(pendulum, 12, **compiled),
                NUMPY: Side.shoal(pendulum, 12),
                "RLtools": Side("rltools", "rltools", "pendulum", {**rltools, "iterations": 12}),
            },
        ),
        Work(
            "PPO, CartPole-v1, 1024 environments that step as one, minibatches of 8192, 1 pass",
            {
                "shoal, Gymnasium's vector, compiled kernel": Side.shoal(MANY, 15, vectorization="native", **compiled),
                POOL: Side.shoal(MANY, 15, vectorization="envpool", env_config={"num_threads": 1}, **compiled),
                "SB3, EnvPool": Side.sb3(MANY, 2, pool=True),
            },
        ),
        Work(
            "PPO, HalfCheetah-v5 (MuJoCo), 8 environments, minibatches of 256, 10 passes",
            {
                SHOAL: Side.shoal(CHEETAH, 4, **compiled),
                "SB3": Side.sb3(CHEETAH, 2),
                "sbx": Side.sbx(CHEETAH, 3),
            },
        ),
        Work(
            "SAC, Pendulum-v1, 256x256, one update of 256 per step",
            {
                "shoal": Side("shoal", "shoal", "sac", {**SAC, "steps": 800}),
                "SB3": Side("sb3", "sb3", "sac", {**SAC, "steps": 500}),
                "sbx": Side("sbx", "sbx", "sac", {**SAC, "steps": 500}),
            },
        ),
        Work(
            "PPO, Breakout (84x84x4 frames of EnvPool), 8 environments, minibatches of 256, 4 passes",
            {
                "shoal": Side("shoal", "images_shoal", "ppo", FRAMES),
                "SB3": Side("sb3", "images_sb3", "ppo", FRAMES),
            },
        ),
    ]


def measure(chosen: list[Work], minutes: float, turns: int) -> dict[str, dict[str, Rates]]:
    """Steps per CPU second and per second of every side, turn by turn."""
    seen: dict[str, dict[str, Rates]] = {
        work.name: {label: {"per_cpu_s": [], "per_s": []} for label in work.sides} for work in chosen
    }
    begun, longest = monotonic(), 0.0
    for turn in range(turns):
        if turn and monotonic() + longest > begun + 60 * minutes:
            break
        started = monotonic()
        for work in chosen:
            for label, side in work.sides.items():
                console.print(f"  turn {turn + 1}: {work.name}: {label}", style="dim")
                answer = ask(side.who, side.task, side.runner, **side.arguments).answer
                for unit, rates in seen[work.name][label].items():
                    rates.append(answer[unit])
        longest = max(longest, monotonic() - started)
    return seen


def summary(seen: dict[str, dict[str, Rates]]) -> dict[str, Any]:
    """Of each side its rates, and how many times as fast per CPU second the first one is, by turns."""
    found: dict[str, Any] = {}
    for work, sides in seen.items():
        first = next(iter(sides.values()))["per_cpu_s"]
        found[work] = {}
        for label, rates in sides.items():
            ratios = [mine / theirs for mine, theirs in zip(first, rates["per_cpu_s"], strict=True)]
            units = {unit: with_interval(values) for unit, values in rates.items()}
            found[work][label] = {**units, "first_over_it": with_interval(ratios), "turns": len(ratios)}
    return found


def table_of(results: dict[str, Any], head: dict[str, Any]) -> str:
    """The table in Markdown, and below it what it was measured on."""
    lines = [
        "| work | library | steps per CPU second | steps per second | times as fast as it |",
        "|---|---|---|---|---|",
    ]
    for work, sides in results.items():
        name = work
        for place, (label, row) in enumerate(sides.items()):
            ratio = _cell(row["first_over_it"], 2) if place else "-"
            cells = (_cell(row["per_cpu_s"]), _cell(row["per_s"]), ratio)
            lines.append(f"| {name} | {label} | {' | '.join(cells)} |")
            name = ""
    machine, versions = head["machine"], head["versions"]
    pins = ", ".join(f"{name} {number}" for each in versions.values() for name, number in each.items())
    turns = min(row["turns"] for sides in results.values() for row in sides.values())
    lines += [
        "",
        f"Medians of {turns} turns (95 % intervals; of fewer than six turns the lowest and the highest). The last "
        "column compares the first library of each work with the others per CPU second, turn by turn. One process; one "
        "thread where the library lets one say so.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}, load before {machine['load_before']}; "
        f"{head['date']}, commit {head['commit'][:12]}; {_without_repeats(pins)}.",
    ]
    return "\n".join(lines) + "\n"


def bars_of(results: dict[str, Any]) -> list[Bar]:
    """Who is slower than another library: each as a bar of one."""
    return [
        Bar(f"{work}: over {label}", row["first_over_it"]["median"], 1.0, at_least=True, unit="x")
        for work, sides in results.items()
        for label, row in sides.items()
        if not label.startswith("shoal")
    ]


def _cell(value: dict[str, float], digits: int = 0) -> str:
    numbers = (f"{value[key]:,.{0 if value[key] >= 100 else max(digits, 1)}f}" for key in ("median", "low", "high"))
    return "{} ({}..{})".format(*numbers)


def _without_repeats(pins: str) -> str:
    return ", ".join(dict.fromkeys(pins.split(", ")))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no turn begins that might end later")
    parser.add_argument("--turns", type=int, default=MOST_TURNS, help="at most so many")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORDS", help="works whose names hold one of these")
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    options = parser.parse_args()
    chosen = [work for work in works() if any(words.lower() in work.name.lower() for words in options.only)]
    if not chosen:
        parser.error("no work has such a name: " + "; ".join(work.name for work in works()))
    who = sorted({side.who for work in chosen for side in work.sides.values()})
    for each in who:  # the first time it takes some minutes, which are not those of the table
        python_of(each)
    record = Record("quick", who, {"minutes": options.minutes})
    results = summary(measure(chosen, options.minutes, 1 if options.quick else options.turns))
    table, bars = table_of(results, record.head), bars_of(results)
    console.print(table, markup=False, soft_wrap=True)
    show_bars(bars)
    if not options.quick and options.only == [""]:
        (RESULTS / "quick.md").write_text(table)
        console.print("the table stands in benchmarks/results/quick.md")
        record.keep(results, bars)


if __name__ == "__main__":
    main()
