"""What the compiled kernel brings: learning and whole PPO in turns with NumPy's, and RLtools beside them.

The work: 64 environments of Pendulum-v1 times 64 steps, minibatches of 256, 10 epochs, two nets of 64x64.
`learning` is the update alone, from one batch in one process; `ppo` is the whole algorithm, each turn in a process of
its own, with tanh, shoal's default, and with ReLU, RLtools' own. All times are CPU seconds of one thread. A ratio is
that of two turns right after one another; of all ratios the median is given with the interval in which it lies with
95 % certainty, by order statistics.
"""

from __future__ import annotations

import argparse
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars, with_interval
from rich.table import Table

ENVS, STEPS, MINIBATCH, EPOCHS = 64, 64, 256, 10
WORK: dict[str, Any] = {
    "num_envs_per_worker": ENVS,
    "train_batch_size": ENVS * STEPS,
    "sgd_minibatch_size": MINIBATCH,
    "num_sgd_iter": EPOCHS,
    "model": {"fcnet_hiddens": [64, 64]},
}
ACTIVATIONS = ("tanh", "relu")
MINIBATCHES = ENVS * STEPS // MINIBATCH * EPOCHS


def learning(rounds: int) -> dict[str, Any]:
    """Microseconds of a minibatch with each kernel, and how many times as fast the compiled one is."""
    seconds = ask("shoal", "learning", runner="kernel", rounds=rounds, work=WORK).answer
    found: dict[str, Any] = {}
    for kernel, each in seconds.items():
        found[f"{kernel}_us_per_minibatch"] = with_interval([one / MINIBATCHES * 1e6 for one in each])
    pairs = zip(seconds["numpy"], seconds["compiled"], strict=True)
    found["speedup"] = with_interval([plain / compiled for plain, compiled in pairs])
    return found


def ppo(activation: str, rounds: int, iterations: int, with_rltools: bool) -> dict[str, Any]:
    """Steps per CPU second of each, and the ratios to the compiled kernel's."""
    work = {**WORK, "model": {**WORK["model"], "fcnet_activation": activation}}
    rates: dict[str, list[float]] = {"numpy": [], "compiled": []}
    if with_rltools:
        rates["rltools"] = []
        _rltools(activation, 1)  # compiles
    for _ in range(rounds):
        for who, found in rates.items():
            if who == "rltools":
                found.append(_rltools(activation, iterations))
            else:
                answer = ask("shoal", "pendulum", runner="kernel", kernel=who, iterations=iterations, work=work).answer
                found.append(answer["steps_per_cpu_s"])
    kept: dict[str, Any] = {f"{who}_steps_per_cpu_s": with_interval(found) for who, found in rates.items()}
    for who in rates:
        if who != "compiled":
            pairs = zip(rates["compiled"], rates[who], strict=True)
            kept[f"compiled_over_{who}"] = with_interval([mine / other for mine, other in pairs])
    return kept


def _rltools(activation: str, iterations: int) -> float:
    work = {
        "activation": activation,
        "num_envs": ENVS,
        "steps_per_env": STEPS,
        "minibatch": MINIBATCH,
        "epochs": EPOCHS,
    }
    rate: float = ask("rltools", "pendulum", iterations=iterations, **work).answer["per_cpu_s"]
    return rate


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print one row for each figure."""
    table = Table("", "median", "95 %", title="PPO on Pendulum-v1, 64 x 64 steps, minibatches of 256, 10 epochs")
    for part, figures in results.items():
        for name, figure in figures.items():
            table.add_row(f"{part}: {name}", f"{figure['median']:.4g}", f"{figure['low']:.4g} .. {figure['high']:.4g}")
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of the whole algorithm")
    parser.add_argument("--who", nargs="*", default=["rltools"], choices=["rltools"], help="peers to put beside")
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are not kept")
    options = parser.parse_args()
    rounds, updates, iterations = (2, 4, 2) if options.quick else (options.rounds, 60, 10)
    record = Record("kernel", ["shoal", *options.who], {**WORK, "rounds": rounds, "updates": updates})
    results = {"learning": learning(updates)}
    for activation in ACTIVATIONS:
        results[f"ppo, {activation}"] = ppo(activation, rounds, iterations, "rltools" in options.who)
    bars = [Bar("learning, compiled over NumPy", results["learning"]["speedup"]["median"], 2.0, True)]
    if "rltools" in options.who:
        for activation in ACTIVATIONS:
            beside = results[f"ppo, {activation}"]["compiled_over_rltools"]["median"]
            bars.append(Bar(f"steps per CPU second with {activation}, compiled over RLtools", beside, 1.0, True))
    show(results)
    show_bars(bars)
    if not options.quick:
        record.keep(results, bars)


if __name__ == "__main__":
    main()
