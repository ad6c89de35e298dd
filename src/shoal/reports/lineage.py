"""The drawings of a population: who took over whom, and the settings over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shoal.data.number_text import tick_text
from shoal.reports.answer import Answer
from shoal.reports.charts import ChartEntry
from shoal.reports.drawing import Frame, Scale, chart, label, line, scale_of, tag
from shoal.reports.labels import LOG_KINDS
from shoal.reports.records import Exploit, TrialRecord


def lineage(answer: Answer, entries: Sequence[ChartEntry]) -> str:
    """One lane per trial of a population, with an arrow from whom it took over, and how the best came to be."""
    analysis = answer.analysis
    by_index = {entry.records[0].index: entry for entry in entries}
    order = [entry.records[0] for entry in entries[::-1]]
    step = 26 if len(order) <= 40 else 12
    left, top, width = 70, 10, 960
    height = top + step * len(order) + 40
    ends = {record.index: _reached(record, analysis.axis) for record in order}
    x = Scale(0.0, max(ends.values()) or 1.0, left, width - 14)
    lanes = {record.index: top + step * (place + 0.5) for place, record in enumerate(order)}
    skip = -(-len(order) // 40)
    words = [label(f"trial {r.index}", left - 8, lanes[r.index] + 4, "end", "tick") for r in order[::skip]]
    axis = [label(analysis.axis, (left + width) / 2, height - 4, class_="name")]
    for value in x.ticks(7):
        axis.append(tag("line", x1=x(value), x2=x(value), y1=top, y2=height - 34))
        axis.append(label(tick_text(value), x(value), height - 20, class_="tick"))
    lines = []
    for record in order:
        y = lanes[record.index]
        parts = [line([(x(0), y), (x(ends[record.index]), y)])]
        for exploit in record.exploits:
            at, source = x(_when(exploit, analysis.axis)), lanes.get(exploit.source)
            if source is not None:
                parts.append(line([(at, source), (at, y)], class_="take"))
                parts.append(tag("path", d=_arrow(at, y, down=y > source), class_="head"))
        lines.append(by_index[record.index].group(*parts))
    way: list[tuple[float, float]] = []
    if answer.best is not None:
        for index, a, b in ancestry(order, answer.best.trials[0].index, analysis.axis):
            way += [(x(min(b, ends[index])), lanes[index]), (x(a), lanes[index])]
    title = "Lineage: which trial copied which, and when; the bold line is the history of the best trial"
    taken: list[list[Any]] = [["trial", "took over", f"at {analysis.axis}"]]
    taken += [[one.index, exploit.source, _when(exploit, analysis.axis)] for one in order for exploit in one.exploits]
    grid = tag("g", *axis, *words, class_="grid")
    return chart(title, width, height, grid, *lines, line(way, class_="way"), rows=taken)


def ancestry(records: Sequence[TrialRecord], index: int, axis: str) -> list[tuple[int, float, float]]:
    """The trials through which the weights of one came: `(trial, from, to)`, newest first."""
    by_index = {record.index: record for record in records}
    found: list[tuple[int, float, float]] = []
    until = math.inf
    while index in by_index:
        before = [exploit for exploit in by_index[index].exploits if _when(exploit, axis) < until]
        if not before:
            found.append((index, 0.0, until))
            break
        last = max(before, key=lambda exploit: _when(exploit, axis))
        found.append((index, float(_when(last, axis)), until))
        index, until = last.source, float(_when(last, axis))
    return found


def settings_over_time(answer: Answer, entries: Sequence[ChartEntry]) -> list[str]:
    """For each setting, its value in every trial as it changed."""
    analysis = answer.analysis
    settings = {setting.path: setting for setting in analysis.settings}
    ways = {entry.index: _course(entry.records[0], analysis.axis) for entry in entries}
    frame = Frame(470, 220, left=64, top=28, bottom=44)
    x = Scale(0.0, max((at for way in ways.values() for at, _ in way), default=1.0) or 1.0, *frame.across)
    drawings = []
    for path in answer.paths:
        numbers: list[Any] = [own.get(path) for way in ways.values() for _, own in way]
        if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in numbers):
            continue
        log = settings[path].kind in LOG_KINDS and min(numbers) > 0
        y = scale_of(numbers, *frame.up, log)
        lines = []
        for entry in entries:
            points: list[tuple[float, float]] = []
            for at, own in ways[entry.index]:
                points += [(x(at), points[-1][1])] if points else []
                points.append((x(at), y(own[path])))
            lines.append(entry.group(line(points)))
        words = frame.lattice(x, y, analysis.axis, answer.names[path])
        rows: list[list[Any]] = [["trial", analysis.axis, path]]
        rows += [[index, at, own[path]] for index, way in sorted(ways.items()) for at, own in way]
        title = f"{answer.names[path]} over {analysis.axis}"
        drawings.append(chart(title, frame.width, frame.height, words, *lines, rows=rows))
    return drawings


def _course(record: TrialRecord, axis: str) -> list[tuple[float, dict[str, Any]]]:
    """The settings of a trial from each moment on, and at its end."""
    first = record.first_settings or (record.settings if not record.exploits else None)
    way: list[tuple[float, dict[str, Any]]] = [(0.0, first)] if first else []
    way += [(float(_when(exploit, axis)), exploit.settings) for exploit in record.exploits]
    return [*way, (_reached(record, axis), way[-1][1])]


def _when(exploit: Exploit, axis: str) -> int:
    return int(exploit.timesteps_total if axis == "timesteps_total" else exploit.training_iteration)


def _reached(record: TrialRecord, axis: str) -> float:
    return float(record.last_result.get(axis, 0.0))


def _arrow(x: float, y: float, down: bool) -> str:
    back = -7 if down else 7
    return f"M{x:.1f} {y:.1f}l-4 {back}h8z"
