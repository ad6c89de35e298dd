"""What `learning.py` shows: a table with the interquartile mean of each lesson, and a page of curves."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lessons import Lesson
from record import RESULTS, console
from rich.table import Table

RESAMPLES = 2000
ENOUGH = 3  # seeds of each library before one is called better than the other
COLOURS = {"shoal": "tab:blue", "sb3": "tab:orange", "rllib": "tab:green"}
PEERS = {"sb3": "SB3", "rllib": "RLlib"}

READING = """The last column says where shoal's mean lies by the peer's interval, where both have three seeds or more.
"defaults" are each library's own settings with its usual normalisation of observations and rewards, "same" are the
peer's settings in shoal's words without any. Episodes that are not over yet are in no mean, and shoal's defaults have
eight environments where the peers' have one: where episodes are long, their means are of a policy some thousand steps
older. Times depend on what else the machine did, wall time more so; the CPU time
of a run with workers is that of its learner alone."""

Pieces = Mapping[str, Sequence[Mapping[str, Any]]]


def iqm(values: Sequence[float]) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is cut off at each end."""
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the interquartile mean lies in 95 of 100 resamples."""
    chance = random.Random(0)
    means = sorted(iqm(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """The mean of the values that there are."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def table_of(found: Pieces, lessons: Sequence[Lesson]) -> list[dict[str, Any]]:
    """One row for each lesson."""
    rows: list[dict[str, Any]] = []
    for lesson in lessons:
        row: dict[str, Any] = {"run": lesson.run, "name": lesson.name, "kind": lesson.kind, "steps": lesson.steps}
        if lesson.peer_run:
            row["peer_run"] = lesson.peer_run
        for who in lesson.who:
            pieces = found.get(f"{lesson.key}/{who}")
            if pieces:
                finals = [piece["final"] for piece in pieces]
                row[who] = {
                    "iqm": iqm(finals),
                    "interval": interval(finals),
                    "each": finals,
                    "wall_s": mean_or_none([piece["wall_s"] for piece in pieces]),
                    "cpu_s": statistics.fmean(piece["cpu_s"] for piece in pieces),
                    "commits": sorted({piece["commit"] for piece in pieces}),
                }
        peer = peer_of([lesson])
        row["verdict"] = verdict(row.get("shoal"), row.get(peer)) if peer else ""
        rows.append(row)
    return rows


def peer_of(lessons: Sequence[Lesson]) -> str:
    """The library that these lessons have beside shoal, if any."""
    return next((who for lesson in lessons for who in lesson.who if who in PEERS), "")


def verdict(ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> str:
    """Where shoal's interquartile mean lies by the interval of the peer's."""
    if ours is None or theirs is None:
        return "not measured"
    if min(len(ours["each"]), len(theirs["each"])) < ENOUGH:
        return "too few seeds"
    low, high = theirs["interval"]
    if ours["iqm"] < low:
        return "below"
    return "above" if ours["iqm"] > high else "inside"


def _algorithm(row: Mapping[str, Any]) -> str:
    """What shoal learns by, and the peer's where that is another."""
    return f"{row['run']} (peer: {row['peer_run']})" if row.get("peer_run") else str(row["run"])


def _cells(figures: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return, number of seeds, and time of one seed."""
    if figures is None:
        return "not measured", "0", ""
    low, high = figures["interval"]
    times = f"{figures['cpu_s']:.0f}"
    if figures["wall_s"] is not None:
        times += f" ({figures['wall_s']:.0f})"
    return f"{figures['iqm']:.1f} ({low:.1f}..{high:.1f})", str(len(figures["each"])), times


def write_page(part: str, rows: Sequence[Mapping[str, Any]], found: Pieces, lessons: Sequence[Lesson]) -> None:
    """Print the table, and write it with the curves to `results/learning-PART.md`."""
    peer = peer_of(lessons)
    heads = ["algorithm", "task", "settings", "steps", "shoal", "seeds", "CPU s (wall s)"]
    if peer:
        name = PEERS[peer]
        heads += [name, f"{name}'s seeds", f"{name}'s CPU s (wall s)", "shoal is"]
    printed = Table(*heads, title="Return, last 100 episodes: interquartile mean over the seeds (95 % interval)")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [_algorithm(row), row["name"], row["kind"], f"{row['steps']:,}", *_cells(row.get("shoal"))]
        if peer:
            cells += [*_cells(row.get(peer)), row["verdict"]]
        printed.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    console.print(printed)
    plot(part, found, lessons)
    title = f"# What shoal learns: {part}\n\nMade by `benchmarks/learning.py {part}`; the pieces are in "
    title += f"[learning-{part}.jsonl](learning-{part}.jsonl). Returns are those of the last 100 episodes: the "
    title += "interquartile mean over the seeds, with its 95 % interval.\n"
    if peer:
        title += f"\n{READING}\n"
    title += f"\n![curves](learning-{part}.png)\n\n"
    (RESULTS / f"learning-{part}.md").write_text(title + "\n".join(lines) + "\n")


def plot(part: str, found: Pieces, lessons: Sequence[Lesson]) -> None:
    """Draw every seed's curve, in one panel for each lesson."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [each for each in lessons if any(f"{each.key}/{who}" in found for who in each.who)]
    columns = min(4, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.4 * columns, 2.4 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    for axis, lesson in zip(axes.flat, shown, strict=False):
        for who in lesson.who:
            for number, piece in enumerate(found.get(f"{lesson.key}/{who}", ())):
                steps, means = zip(*piece["curve"], strict=True)
                axis.plot(steps, means, color=COLOURS[who], linewidth=0.9, label=None if number else who)
        axis.set_title(f"{lesson.run}, {lesson.name}, {lesson.kind}", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7)
    figure.savefig(RESULTS / f"learning-{part}.png", dpi=60)
    pyplot.close(figure)
