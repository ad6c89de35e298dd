"""How well `shoal profile` predicts: steps per second of PPO beside real runs, for five kinds of environments.

CartPole and Pendulum, simulators that wait 5 ms and 100 ms a step, and one that waits 5 ms and ten times as long in 5 %
of its steps; in one process, with 1, 2 and 4 workers, and with environments in processes of their own. A prediction is
made from some seconds of measuring right before its run, because machines change with the hour; both are medians over
the repeats, which go through all layouts by turns. Virtual machines have neighbours: a pair is steady if the machine
computed as fast before the prediction, before the run and after it, within 15 %. One that is not is measured again, up
to twice. Steady pairs count; where a layout has none, the one whose speeds differ least does, and the row says so.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from peers import ask
from record import Bar, Record, console, show_bars
from rich.table import Table

CASES = ("CartPole", "Pendulum", "5 ms", "100 ms", "uneven")
LAYOUTS = ((0, False), (0, True), (1, False), (2, False), (4, False), (2, True))
SECONDS = 4.0
LEAST_S = 4.0  # of a run, after its first iteration
STEADY = 1.15  # how many times as fast as at another moment of a pair the machine may be
MOST_TRIES = 3  # of one pair, until it is steady

Found = dict[str, Any]


def label(workers: int, is_isolated: bool) -> str:
    """What a layout is called."""
    return f"{workers} workers{', processes' if is_isolated else ''}"


def measure(cases: tuple[str, ...], repeat: int, seconds: float, least_s: float, tries: int) -> list[Found]:
    """A prediction and a run of every layout, so many times until it is steady."""
    found = []
    for case in cases:
        for workers, is_isolated in LAYOUTS:
            for _ in range(tries):
                found.append(pair(case, workers, is_isolated, repeat, seconds, least_s))
                if unsteadiness(found[-1]) < STEADY:
                    break
    return found


def pair(case: str, workers: int, is_isolated: bool, repeat: int, seconds: float, least_s: float) -> Found:
    """One prediction and one run."""
    arguments = {"case": case, "num_workers": workers, "is_isolated": is_isolated}
    answer = ask("shoal", "pair", "profile", **arguments, seconds=seconds, least_s=least_s).answer
    ratio = answer["predicted"] / answer["real"] - 1
    speeds = ", ".join(f"{value / answer['speeds'][0]:.2f}" for value in answer["speeds"])
    text = f"  {case}, {label(workers, is_isolated)}: {ratio:+.0%} (speed of the machine: {speeds})"
    console.print(text, style="dim")
    return {**arguments, "repeat": repeat, **answer}


def unsteadiness(found: Found) -> float:
    """How many times as fast as at another moment of a pair the machine was."""
    speeds: list[float] = found["speeds"]
    return max(speeds) / min(speeds)


def summary(found: list[Found]) -> list[Found]:
    """Medians over the repeats of each case and layout."""
    rows = []
    for case in dict.fromkeys(each["case"] for each in found):
        for workers, is_isolated in LAYOUTS:
            key = case, workers, is_isolated
            pairs = [each for each in found if (each["case"], each["num_workers"], each["is_isolated"]) == key]
            steady = [each for each in pairs if unsteadiness(each) < STEADY]
            counted, pairs = len(steady), steady or [min(pairs, key=unsteadiness)]
            names = ("predicted", "low", "high", "real")
            medians = {name: statistics.median(each[name] for each in pairs) for name in names}
            ratios = [each["predicted"] / each["real"] for each in pairs]
            layout = {"case": case, "num_workers": workers, "is_isolated": is_isolated}
            rows.append({**layout, **medians, "error": statistics.median(ratios) - 1, "steady": counted})
    return rows


def show(rows: list[Found]) -> None:
    """Print predictions beside runs."""
    table = Table("case", "layout", "predicted", "95 %", "real", "off by", "steady pairs", title="Steps per second")
    for row in rows:
        interval = f"{row['low']:.0f} to {row['high']:.0f}"
        cells = (f"{row['predicted']:.0f}", interval, f"{row['real']:.0f}", f"{row['error']:+.0%}", str(row["steady"]))
        table.add_row(row["case"], label(row["num_workers"], row["is_isolated"]), *cells)
    console.print(table)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of: {', '.join(CASES)}; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="see that it runs; nothing is kept")
    options = parser.parse_args()
    cases = tuple(options.cases) or CASES
    unknown = set(cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {min(unknown)!r}; there are {', '.join(CASES)}")
    repeats, seconds, least_s, tries = options.repeats, SECONDS, LEAST_S, MOST_TRIES
    if options.quick:
        repeats, seconds, least_s, tries = 1, 2.0, 1.0, 1
    record = Record("profile", ["shoal"], {"repeats": repeats, "seconds": seconds, "run_s": least_s})
    found: list[Found] = []
    for repeat in range(repeats):
        found += measure(cases, repeat, seconds, least_s, tries)
        rows = summary(found)
        show(rows)
        bars = []
        for case in cases:
            worst = max(abs(row["error"]) for row in rows if row["case"] == case)
            bars.append(Bar(f"{case}: largest error of the prediction", worst, 0.25, at_least=False))
        show_bars(bars)
        if not options.quick and cases == CASES:
            record.keep({"layouts": rows, "pairs": found}, bars)


if __name__ == "__main__":
    main()
