"""What a sweep's page draws: parallel coordinates, and the lines of its learning curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.config.sweep import Setting
from shoal.data.number_text import number_text, tick_text
from shoal.reports.answer import Answer
from shoal.reports.curves import Curve, Floats, value_at
from shoal.reports.drawing import Scale, chart, escaped, label, line, scale_of, tag
from shoal.reports.figure_data import OwnLine
from shoal.reports.labels import LIST_KINDS, LOG_KINDS, same_key, value_text
from shoal.reports.records import TrialRecord

SHADES = 8
MOST_BANDS, MOST_BAND_POINTS = 5, 150
MOST_DOTS = 60
"""With more lines than that, each is thinner and paler, and a usual end has no mark."""
MOST_TOUCHED = 200
"""Up to so many lines get a broad invisible one each, which is easier to point at."""


@dataclass(frozen=True)
class ChartEntry:
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


def chart_entries(answer: Answer) -> list[ChartEntry]:
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
        found.append(ChartEntry(group.index, records, group.mean, shade, title))
    for index, rest in members.items():
        title = f"trial {rest[0].index}, {rest[0].status}: {answer.settings(rest[0])}"
        found.append(ChartEntry(index, tuple(rest), None, "none", title))
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


def parallel_coordinates(answer: Answer, entries: Sequence[ChartEntry]) -> str:
    """One line per trial through its settings to its score."""
    settings = {setting.path: setting for setting in answer.analysis.settings}
    paths = answer.paths
    width, height, top, bottom, side = max(560, 150 * (len(paths) + 1)), 360, 46, 24, 84
    places = np.linspace(side, width - side, len(paths) + 1).tolist()
    axes, columns = [], []
    for path, x in zip(paths, places):
        values = [entry.records[0].settings.get(path) for entry in entries]
        heights, ticks = _axis(settings[path], values, height - bottom, top)
        columns.append(heights)
        axes.append(_drawn_axis(answer.names[path], x, ticks, top, height - bottom))
    scores = [entry.score for entry in entries if entry.score is not None]
    scale = _score_scale(scores, height - bottom, top)
    axes.append(
        _drawn_axis(
            answer.analysis.sweep.metric, places[-1], [(scale(v), tick_text(v)) for v in scale.ticks()], top,
            height - bottom,
        )
    )  # fmt: skip
    lines = []
    for at, entry in enumerate(entries):
        points = [(x, column[at]) for x, column in zip(places, columns)]
        if entry.score is not None:
            points.append((places[-1], scale(min(max(entry.score, scale.low), scale.high))))
        touched = [line(points, class_="touch")] if len(entries) <= MOST_TOUCHED else []
        lines.append(entry.group(line(points), *touched))
    title = "Parallel coordinates: each line is one trial, through its settings to its score"
    metric = answer.analysis.sweep.metric
    rows: list[list[Any]] = [["trials", *paths, metric]]
    for entry in reversed(entries):
        trials = " ".join(str(record.index) for record in entry.records)
        rows.append([trials, *(value_text(entry.records[0].settings.get(path)) for path in paths), entry.score])
    return chart(title, width, height, *lines, *axes, class_=f"full {_crowd(entries)}", rows=rows)


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
    seen, counts = dict.fromkeys(order, 0), Counter(keys)
    heights = []
    for key in keys:
        share = (seen[key] + 0.5) / counts[key] - 0.5
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


def learning_curves(answer: Answer, entries: Sequence[ChartEntry]) -> list[OwnLine]:
    """The metric over the steps, one line per trial, or with seeds their mean with a band; best last."""
    analysis = answer.analysis
    drawn = [entry for entry in entries if any(record.index in analysis.curves for record in entry.records)]
    lines = []
    for place, entry in enumerate(drawn):
        own = [analysis.curves[record.index] for record in entry.records if record.index in analysis.curves]
        mean, bounds, rests = _with_band(own) if len(own) > 1 else (own[0], None, ())
        is_bounded = len(drawn) - place <= MOST_BANDS
        end = _end_mark({record.status for record in entry.records}, len(drawn) <= MOST_DOTS)
        kind = f"t {entry.shade}"
        lines.append(OwnLine(entry.title, kind, entry.index, mean, bounds if is_bounded else None, rests, end))
    # A function that reports once learns nothing on the way.
    return lines if max((len(line.curve.x) for line in lines), default=0) > 1 else []


def _crowd(entries: Sequence[ChartEntry]) -> str:
    return "many" if len(entries) > MOST_DOTS else ""


def _with_band(curves: Sequence[Curve]) -> tuple[Curve, tuple[Floats, Floats] | None, tuple[Curve, ...]]:
    """The mean of seeds as far as all of them went, with the worst and the best of them, and how the others went on."""
    end, begin = min(float(curve.x[-1]) for curve in curves), max(float(curve.x[0]) for curve in curves)
    at: Floats = np.unique(np.concatenate([curve.x for curve in curves]))
    at = at[(at >= begin) & (at <= end)]
    at = at[:: max(1, len(at) // MOST_BAND_POINTS)]
    rows = np.stack([value_at(curve, at) for curve in curves])
    rests = []
    for curve in curves:
        later = curve.x >= end
        if curve.x[-1] > end:
            rests.append(Curve(curve.x[later], curve.y[later]))
    return Curve(at, rows.mean(axis=0)), (rows.min(axis=0), rows.max(axis=0)) if len(at) else None, tuple(rests)


def _end_mark(statuses: set[str], dots: bool) -> str:
    if "stopped early" in statuses:
        return "early"
    if statuses == {"failed"}:
        return "failed"
    return "dot" if dots and statuses == {"finished"} else ""


def legend(answer: Answer, entries: Sequence[ChartEntry]) -> str:
    """What colours and marks mean."""
    scores = [entry.score for entry in entries if entry.score is not None]
    words = ["".join(tag("i", " ", class_=f"q{place}") for place in range(SHADES)), " worst to best by rank"]
    words += [" · ", tag("i", " ", class_="best"), f" the best ({number_text(scores[-1])})"] if scores else []
    statuses = {record.status for record in answer.analysis.records}
    words += [" · ┃ stopped early"] if "stopped early" in statuses else []
    words += [" · ✕ failed"] if "failed" in statuses else []
    return tag("p", *words, class_="legend")
