"""The page of a sweep: one file that needs nothing else, readable on a phone, in the light and in the dark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shoal.data.number_text import number_text, percent_text
from shoal.reports.answer import Answer, interval_text
from shoal.reports.charts import (
    ChartEntry,
    chart_entries,
    learning_curves,
    legend,
    parallel_coordinates,
)
from shoal.reports.drawing import chart, escaped, label, tag
from shoal.reports.figure_data import FigureSpec, own_figure
from shoal.reports.importance import Importance
from shoal.reports.labels import value_text
from shoal.reports.lineage import lineage, settings_over_time
from shoal.reports.page_shell import cell, figure_box, figure_controls, filtered_table, html_page
from shoal.reports.records import TrialRecord
from shoal.reports.tables import axis_text, reached_text

LONGEST_REASON = 160
CURVES = "Learning curves"
MOST_LETTERS = 40  # of a setting above its bar


def page(answer: Answer) -> str:
    """The whole page; it is well-formed XML too."""
    sweep = answer.analysis.sweep
    entries = chart_entries(answer)
    curves = learning_curves(answer, entries)
    body = [tag("h1", escaped(sweep.name)), *_about(answer), tag("main", *_sections(answer, entries, bool(curves)))]
    if not curves:
        return html_page(f"{sweep.name}: sweep", *body)
    axis = answer.analysis.axis
    figure = own_figure(FigureSpec(CURVES, sweep.metric, is_big=True), (axis, axis_text(axis)), "", curves, False)
    data = {"axes": [], "groups": [], "figures": [figure]}
    return html_page(f"{sweep.name}: sweep", *body, scripts=("page.js", "figures.js"), data=data)


def _about(answer: Answer) -> list[str]:
    sweep = answer.analysis.sweep
    config = sweep.tree.get("config") or {}
    what = [str(word) for word in (sweep.tree.get("run"), sweep.tree.get("env", config.get("env"))) if word]
    how = [f"{sweep.search_alg.type} search", f"scheduler {sweep.scheduler.type}"]
    written = time.strftime("written %Y-%m-%d %H:%M")
    words = [" ".join(what), answer.counts(), *how, f"{sweep.metric}, {sweep.mode}" if sweep.metric else "", written]
    return [tag("p", escaped(" · ".join(word for word in words if word)), class_="soft")]


def _sections(answer: Answer, entries: Sequence[ChartEntry], has_curves: bool) -> list[str]:
    parts = [_answer(answer)]
    if answer.paths and answer.groups:
        parts += [tag("h2", "Settings and scores"), legend(answer, entries), parallel_coordinates(answer, entries)]
    if has_curves:
        parts.append(tag("h2", "Learning curves"))
        if answer.seeds:
            words = "The line is the mean of the seeds, the band goes from the worst of them to the best (first five)."
            parts.append(tag("p", words, class_="soft"))
        figure = tag("div", figure_box(0, answer.analysis.sweep.metric, True), class_="figures")
        parts.append(tag("div", figure_controls(), figure))
    parts += _importance(answer)
    if any(record.exploits for record in answer.analysis.records):
        parts += [
            tag("h2", "Lineage"),
            tag(
                "p",
                "An arrow is a trial that copied another; the bold line is the history of the best.",
                class_="soft",
            ),
            lineage(answer, entries),
        ]
        parts.append(tag("div", *settings_over_time(answer, entries), " ", class_="pair"))
    if answer.seeds:
        parts += [tag("h2", "Configurations"), _configurations(answer)]
        if any(len(group.scores) < answer.analysis.sweep.seeds for group in answer.groups):
            parts.append(tag("p", "Those that lack a seed come last, whatever their mean.", class_="soft"))
    return [*parts, tag("h2", "Trials"), _trials(answer)]


def _answer(answer: Answer) -> str:
    best, sweep = answer.best, answer.analysis.sweep
    if best is None:
        why = "No trial has a score yet." if sweep.metric else "The sweep has no metric, so no trial is the best."
        return tag("p", why, class_="answer")
    sure = f"95 % interval of the mean over {len(best.scores)} seeds, " if answer.seeds and best.interval else ""
    parts = [
        tag(
            "p",
            f"Best: {escaped(sweep.metric)} ",
            tag("b", escaped(answer.score(best))),
            tag("span", escaped(f" {sure}{answer.called(best)}"), class_="soft"),
            class_="score",
        ),
    ]
    if best.trials[0].settings:
        rows = [
            tag("dt", escaped(answer.names.get(path, path))) + tag("dd", escaped(value_text(value)))
            for path, value in sorted(
                best.trials[0].settings.items(),
                key=lambda item: answer.paths.index(item[0]) if item[0] in answer.paths else len(answer.paths),
            )
        ]
        parts.append(tag("dl", *rows))
    parts += [tag("p", escaped(answer.verdict))] if answer.verdict else []
    if answer.commands:
        rows = [
            tag("dt", escaped(what)) + tag("dd", tag("code", escaped(command))) for what, command in answer.commands
        ]
        parts.append(tag("dl", *rows))
    return tag("section", *parts, class_="answer", aria_label="The answer")


def _importance(answer: Answer) -> list[str]:
    found = answer.analysis.importances
    parts = [tag("h2", "Importance")]
    if found.settings:
        words = (
            "The share of the differences between trials that each setting explains, by rank, less what chance would."
        )
        parts.append(tag("p", words, class_="soft"))
        parts.append(_importance_bars(answer, [*found.settings, *found.pairs]))
    if found.note:
        parts.append(tag("p", escaped(f"{found.note[:1].upper()}{found.note[1:]}."), class_="soft"))
    return parts


def _importance_bars(answer: Answer, shares: Sequence[Importance]) -> str:
    """A bar for each setting and pair, with its name above it."""
    width, step = 480, 44
    marks = []
    for place, one in enumerate(shares):
        y = step * place + 18
        words = percent_text(one.share) + (", no more than chance" if one.by_chance else "")
        name = answer.name_of(one)
        shown = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        marks += [label(shown, 0, y - 5, "start"), label(words, width, y - 5, "end", "tick")]
        kind = "bar chance" if one.by_chance else "bar"
        marks.append(tag("rect", x=0, y=y, width=f"{max(width * one.share, 2):.1f}", height=14, class_=kind))
    rows: list[list[Any]] = [["setting", "share", "no more than chance"]]
    rows += [[answer.name_of(one), round(one.share, 6), one.by_chance] for one in shares]
    title = "How much of the differences between trials each setting explains"
    return chart(title, width, step * len(shares), *marks, class_="times", rows=rows)


def _configurations(answer: Answer) -> str:
    head = ["rank", "trials", "mean", "95 % interval", "IQM", "seeds", *(answer.names[path] for path in answer.paths)]
    rows = []
    for rank, group in enumerate(answer.groups, start=1):
        cells = [
            cell(str(rank)),
            cell(answer.called(group).partition(" ")[2], group.trials[0].index),
            cell(number_text(group.mean), group.mean),
            cell(interval_text(group)),
            cell(number_text(group.iqm), group.iqm),
            cell(str(len(group.scores))),
            *_setting_cells(answer, group.trials[0]),
        ]
        rows.append(tag("tr", *cells, data_t=group.index, class_="first" if rank == 1 else None))
    return filtered_table(head, rows)


def _trials(answer: Answer) -> str:
    analysis = answer.analysis
    ranks = {record.index: place for place, group in enumerate(answer.groups, start=1) for record in group.trials}
    scores = {r.index: score for group in answer.groups for r, score in zip(group.trials, group.scores, strict=True)}
    head = [
        "rank",
        "trial",
        "status",
        analysis.sweep.metric or "score",
        axis_text(analysis.axis),
        *(["seed"] if answer.seeds else []),
    ]
    head += [answer.names[path] for path in answer.paths]
    reasons = {r.index: r.reason.strip().partition("\n")[0] for r in analysis.records if r.status != "finished"}
    told = any(reasons.values())
    rows = []
    for record in sorted(analysis.records, key=lambda r: (ranks.get(r.index, len(ranks) + 1), r.index)):
        score = scores.get(record.index, record.last_result.get(analysis.sweep.metric))
        steps = record.last_result.get(analysis.axis)
        cells = [
            cell(str(ranks.get(record.index, "-"))),
            tag("td", tag("a", f"{record.index}", href=f"{record.folder}/") if record.folder else str(record.index)),
            cell(record.status),
            cell(number_text(score), score),
            cell(reached_text(record, analysis.axis), steps),
            *([cell("-" if record.seed is None else str(record.seed))] if answer.seeds else []),
            *_setting_cells(answer, record),
            *([tag("td", escaped(reasons.get(record.index, "")[:LONGEST_REASON]), class_="soft")] if told else []),
        ]
        rows.append(tag("tr", *cells, data_t=record.group, class_="first" if ranks.get(record.index) == 1 else None))
    return filtered_table([*head, *(["how it ended"] if told else [])], rows, "Filter trials" if len(rows) > 8 else "")


def _setting_cells(answer: Answer, record: TrialRecord) -> list[str]:
    values = [record.settings.get(path) for path in answer.paths]
    return [cell(value_text(value), value if isinstance(value, (int, float)) else None) for value in values]
