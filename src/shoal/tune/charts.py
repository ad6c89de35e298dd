"""The drawings of a sweep's page: parallel coordinates, learning curves, and who took over whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.config.sweep import Setting
from shoal.tune.answer import Answer
from shoal.tune.curves import Curve, Floats, value_at
from shoal.tune.drawing import Scale, chart, escaped, label, line, scale_of, tag, tick_text
from shoal.tune.naming import LIST_KINDS, LOG_KINDS, same_key, score_text, value_text
from shoal.tune.records import TrialRecord

SHADES = 8
MOST_BANDS, MOST_BAND_POINTS = 5, 150
MOST_DOTS = 60
"""With more lines than that, each is thinner and paler, and a usual end has no mark."""
MOST_TOUCHED = 200
"""Up to so many lines get a broad invisible one each, which is easier to point at."""


@dataclass(frozen=True)
class Unit:
    """What is drawn as one line: a trial, or with seeds the trials that differ in nothing else."""

    index: int
    records: tuple[TrialRecord, ...]
    score: float | None
    shade: str
    """How good it is, as a class of the style sheet."""
    title: str

    def group(self, *inside: str, class_: str = "") -> str:
        """Its marks in one drawing, which are highlighted together with those in the others."""
        words = f"t {self.shade} {class_}".strip()
        return tag("g", tag("title", escaped(self.title)), *inside, class_=words, data_t=self.index)


def units_of(answer: Answer) -> list[Unit]:
    """Everything to draw, best last, so that it lies on top."""
    members: dict[int, list[TrialRecord]] = {}
    for record in answer.analysis.records:
        members.setdefault(record.group, []).append(record)
    found = []
    metric = answer.analysis.sweep.metric
    for rank, group in enumerate(answer.groups):
        records = tuple(members.pop(group.index))
        shade = f"q{SHADES - 1 - SHADES * rank // len(answer.groups)}" if rank else "best"
        title = f"{answer.called(group)}, {metric} {answer.score(group)}: {answer.settings(records[0])}"
        found.append(Unit(group.index, records, group.mean, shade, title))
    for index, rest in members.items():
        title = f"trial {rest[0].index}, {rest[0].status}: {answer.settings(rest[0])}"
        found.append(Unit(index, tuple(rest), None, "none", title))
    return found[::-1]


def limits(values: Sequence[float]) -> tuple[float, float]:
    """The range to draw: all of it, unless a few values are so far off that nothing else could be seen."""
    known = np.asarray(values, np.float64)
    low, high = float(known.min()), float(known.max())
    inner_low, inner_high = (float(value) for value in np.quantile(known, [0.03, 0.97]))
    room = inner_high - inner_low
    if room > 0:
        low = inner_low - room if inner_low - low > 2 * room else low
        high = inner_high + room if high - inner_high > 2 * room else high
    return low, high


def parallel_coordinates(answer: Answer, units: Sequence[Unit]) -> str:
    """One line per trial through its settings to its score."""
    settings = {setting.path: setting for setting in answer.analysis.settings}
    paths = answer.paths
    width, height, top, bottom, side = max(560, 150 * (len(paths) + 1)), 360, 46, 24, 84
    places = np.linspace(side, width - side, len(paths) + 1).tolist()
    axes, columns = [], []
    for path, x in zip(paths, places):
        values = [unit.records[0].settings.get(path) for unit in units]
        heights, ticks = _axis(settings[path], values, height - bottom, top)
        columns.append(heights)
        axes.append(_drawn_axis(answer.names[path], x, ticks, top, height - bottom))
    scores = [unit.score for unit in units if unit.score is not None]
    scale = _score_scale(scores, height - bottom, top)
    axes.append(
        _drawn_axis(
            answer.analysis.sweep.metric, places[-1], [(scale(v), tick_text(v)) for v in scale.ticks()], top,
            height - bottom,
        )
    )  # fmt: skip
    lines = []
    for at, unit in enumerate(units):
        points = [(x, column[at]) for x, column in zip(places, columns)]
        if unit.score is not None:
            points.append((places[-1], scale(min(max(unit.score, scale.low), scale.high))))
        touched = [line(points, class_="touch")] if len(units) <= MOST_TOUCHED else []
        lines.append(unit.group(line(points), *touched))
    title = "Parallel coordinates: each line is one trial, through its settings to its score"
    return chart(title, width, height, *lines, *axes, class_="full many" if len(units) > MOST_DOTS else "full")


def _axis(
    setting: Setting, values: Sequence[Any], start: float, end: float
) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each value lies, and the ticks."""
    is_range = setting.kind not in LIST_KINDS and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )
    if is_range:
        log = setting.kind in LOG_KINDS and min(values) > 0
        scale = scale_of([*values, *_bounds(setting, log)], start, end, log)
        return [scale(value) for value in values], [(scale(v), tick_text(v)) for v in scale.ticks()]
    keys = [same_key(value) for value in values]
    known = {same_key(value): value for value in (*setting.args, *values)}
    order = [key for key in known if key in set(keys)]
    step = (end - start) / len(order)
    middles = {key: start + step * (place + 0.5) for place, key in enumerate(order)}
    # Lines of one value are spread over its stretch, best at the top, so that each can be seen.
    seen: dict[str, int] = dict.fromkeys(order, 0)
    heights = []
    for key in keys:
        share = (seen[key] + 0.5) / keys.count(key) - 0.5
        heights.append(middles[key] + 0.6 * step * share)
        seen[key] += 1
    skip = -(-len(order) // 20)
    return heights, [(middles[key], value_text(known[key])) for key in order[::skip]]


def _bounds(setting: Setting, log: bool) -> list[float]:
    if setting.kind in ("normal",):
        return []
    return [float(bound) for bound in setting.args[:2] if not log or bound > 0]


def _score_scale(scores: Sequence[float], start: float, end: float) -> Scale:
    return scale_of(limits(scores), start, end) if scores else Scale(0, 1, start, end)


def _drawn_axis(name: str, x: float, ticks: Sequence[tuple[float, str]], top: float, bottom: float) -> str:
    shown = name if len(name) <= 20 else f"…{name[-19:]}"
    parts = [tag("line", x1=x, x2=x, y1=top, y2=bottom), label(shown, x, top - 18, class_="name")]
    for y, text in ticks:
        parts.append(tag("line", x1=x - 4, x2=x, y1=y, y2=y))
        shown = text if len(text) <= 12 else f"{text[:11]}…"
        parts.append(label(shown, x - 7, y + 4, "end", "tick"))
    return tag("g", tag("title", escaped(name)), *parts, class_="axis")


def learning_curves(answer: Answer, units: Sequence[Unit]) -> str:
    """The metric over the steps, one line per trial, or with seeds their mean with a band."""
    analysis = answer.analysis
    width, height, left, top, bottom = 960, 390, 64, 28, 48
    drawn = [unit for unit in units if any(record.index in analysis.curves for record in unit.records)]
    curves = [
        analysis.curves[record.index] for unit in drawn for record in unit.records if record.index in analysis.curves
    ]
    if not curves:
        return ""
    x = Scale(0.0, max(float(curve.x[-1]) for curve in curves) or 1.0, left, width - 12)
    y = _score_scale(np.concatenate([curve.y for curve in curves]).tolist(), height - bottom, top)
    grid = _grid(x, y, analysis.axis, analysis.sweep.metric, width, height, left, top, bottom)
    lines = []
    for place, unit in enumerate(drawn):
        own = [analysis.curves[record.index] for record in unit.records if record.index in analysis.curves]
        mean, parts = _with_band(own, x, y, len(drawn) - place <= MOST_BANDS) if len(own) > 1 else (own[0], [])
        points = _points(mean, x, y)
        parts.append(line(points))
        if len(drawn) <= MOST_TOUCHED:
            parts.append(line(points, class_="touch"))
        if points:
            parts.append(_end_mark({record.status for record in unit.records}, *points[-1], len(drawn) <= MOST_DOTS))
        lines.append(unit.group(*parts))
    inside = tag(
        "clipPath", tag("rect", x=left, y=top - 6, width=width - left, height=height - bottom - top + 12), id="in"
    )
    title = f"Learning curves: {analysis.sweep.metric} over {analysis.axis}, one line per trial"
    return chart(
        title,
        width,
        height,
        inside,
        grid,
        tag("g", *lines, clip_path="url(#in)"),
        class_="many" if len(drawn) > MOST_DOTS else "",
    )


def _points(curve: Curve, x: Scale, y: Scale) -> list[tuple[float, float]]:
    return [(x(a), y(b)) for a, b in zip(curve.x.tolist(), curve.y.tolist(), strict=True)]


def _with_band(curves: Sequence[Curve], x: Scale, y: Scale, band: bool) -> tuple[Curve, list[str]]:
    """The mean of seeds as far as all of them went, with the worst and the best of them, and how the others went on."""
    end, begin = min(float(curve.x[-1]) for curve in curves), max(float(curve.x[0]) for curve in curves)
    at: Floats = np.unique(np.concatenate([curve.x for curve in curves]))
    at = at[(at >= begin) & (at <= end)]
    at = at[:: max(1, len(at) // MOST_BAND_POINTS)]
    rows = np.stack([value_at(curve, at) for curve in curves])
    parts = []
    if band and len(at):
        low, high = rows.min(axis=0).tolist(), rows.max(axis=0).tolist()
        outline = [*zip(at.tolist(), high), *zip(at.tolist()[::-1], low[::-1])]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in outline)
        parts.append(tag("polygon", points=points, class_="band"))
    for curve in curves:
        rest = curve.x >= end
        if curve.x[-1] > end:
            parts.append(line(_points(Curve(curve.x[rest], curve.y[rest]), x, y), class_="alone"))
    return Curve(at, rows.mean(axis=0)), parts


def _end_mark(statuses: set[str], x: float, y: float, dots: bool) -> str:
    if "stopped early" in statuses:
        return tag("line", x1=x, x2=x, y1=y - 5, y2=y + 5, class_="end")
    if statuses == {"failed"}:
        return tag("path", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8", class_="end")
    return tag("circle", cx=x, cy=y, r=2.5, class_="dot") if dots and statuses == {"finished"} else ""


def _grid(
    x: Scale, y: Scale, x_name: str, y_name: str, width: int, height: int, left: int, top: int, bottom: int
) -> str:
    parts = [label(x_name, (left + width) / 2, height - 6, class_="name")]
    if y_name:
        parts.append(label(y_name, left, top - 9, "start", "name"))
    for value in x.ticks(7):
        parts.append(tag("line", x1=x(value), x2=x(value), y1=top, y2=height - bottom))
        parts.append(label(tick_text(value), x(value), height - bottom + 16, class_="tick"))
    for value in y.ticks(6):
        parts.append(tag("line", x1=left, x2=width - 12, y1=y(value), y2=y(value)))
        parts.append(label(tick_text(value), left - 6, y(value) + 4, "end", "tick"))
    return tag("g", *parts, class_="grid")


def lineage(answer: Answer, units: Sequence[Unit]) -> str:
    """One lane per trial of a population, with an arrow from whom it took over, and how the best came to be."""
    analysis = answer.analysis
    by_index = {unit.records[0].index: unit for unit in units}
    order = [unit.records[0] for unit in units[::-1]]
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
    title = "Lineage: who took over whom, and when; the strong line is how the best trial came to be"
    grid, strong = tag("g", *axis, *words, class_="grid"), line(way, class_="way")
    return chart(title, width, height, grid, *lines, strong)


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


def settings_over_time(answer: Answer, units: Sequence[Unit]) -> list[str]:
    """For each setting, its value in every trial as it changed."""
    analysis = answer.analysis
    settings = {setting.path: setting for setting in analysis.settings}
    ways = {unit.index: _course(unit.records[0], analysis.axis) for unit in units}
    width, height, left, top, bottom = 470, 220, 64, 28, 44
    x = Scale(0.0, max((at for way in ways.values() for at, _ in way), default=1.0) or 1.0, left, width - 12)
    drawings = []
    for path in answer.paths:
        numbers: list[Any] = [own.get(path) for way in ways.values() for _, own in way]
        if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in numbers):
            continue
        log = settings[path].kind in LOG_KINDS and min(numbers) > 0
        y = scale_of(numbers, height - bottom, top, log)
        lines = []
        for unit in units:
            points: list[tuple[float, float]] = []
            for at, own in ways[unit.index]:
                points += [(x(at), points[-1][1])] if points else []
                points.append((x(at), y(own[path])))
            lines.append(unit.group(line(points)))
        grid = _grid(x, y, analysis.axis, answer.names[path], width, height, left, top, bottom)
        drawings.append(chart(f"{answer.names[path]} over {analysis.axis}", width, height, grid, *lines))
    return drawings


def _course(record: TrialRecord, axis: str) -> list[tuple[float, dict[str, Any]]]:
    """The settings of a trial from each moment on, and at its end."""
    first = record.first_settings or (record.settings if not record.exploits else None)
    way: list[tuple[float, dict[str, Any]]] = [(0.0, first)] if first else []
    way += [(float(_when(exploit, axis)), exploit.settings) for exploit in record.exploits]
    return [*way, (_reached(record, axis), way[-1][1])]


def _when(exploit: Any, axis: str) -> int:
    return int(exploit.timesteps_total if axis == "timesteps_total" else exploit.training_iteration)


def _reached(record: TrialRecord, axis: str) -> float:
    return float(record.last_result.get(axis, 0.0))


def _arrow(x: float, y: float, down: bool) -> str:
    back = -7 if down else 7
    return f"M{x:.1f} {y:.1f}l-4 {back}h8z"


def legend(answer: Answer, units: Sequence[Unit]) -> str:
    """What colours and marks mean."""
    scores = [unit.score for unit in units if unit.score is not None]
    words = ["".join(tag("i", " ", class_=f"q{place}") for place in range(SHADES)), " worst to best by rank"]
    words += [" · ", tag("i", " ", class_="best"), f" the best ({score_text(scores[-1])})"] if scores else []
    statuses = {record.status for record in answer.analysis.records}
    words += [" · ┃ stopped early"] if "stopped early" in statuses else []
    words += [" · ✕ failed"] if "failed" in statuses else []
    return tag("p", *words, class_="legend")
