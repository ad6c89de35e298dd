"""The page of one run or of several: the verdict first, then figures, times, incidents, evaluations, configuration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.data.number_text import counted, duration_text, number_text, rate_text
from shoal.reports import run_sections as sections
from shoal.reports.drawing import escaped, tag
from shoal.reports.figure_data import FigureSpec, figure_data, figures_of
from shoal.reports.page_shell import cell, figure_box, figure_controls, filtered_table, html_page
from shoal.reports.reported_runs import ReportedRun, RunGroup, grouped, left_out, with_results
from shoal.reports.run_list import ended_state, listed
from shoal.reports.run_verdict import RETURN, solved_at, time_shares, verdict_of
from shoal.reports.trajectories import Trajectories
from shoal.reports.trajectory_section import trajectory_section
from shoal.reports.video_section import videos

COLOURS = 8
HEADINGS = {
    "learning": "Learning",
    "policies": "Policies",
    "metrics": "Metrics of the environment",
    "evaluation": "Evaluation",
    "curriculum": "Curriculum",
    "time": "Time and workers",
}


@dataclass(frozen=True)
class ReportInput:
    """What a report is about, and where its file will be, from which links lead to the runs."""

    runs: Sequence[ReportedRun]
    place: Path
    by: Sequence[str] = ()
    cases: Sequence[tuple[str, list[list[str]]]] = field(default_factory=tuple)
    """Tables of case results: a name, and rows of which the first is the head."""
    trajectories: Sequence[Trajectories] = ()
    has_findings: bool = True
    """Whether a single run is diagnosed too."""


def run_page(about: ReportInput) -> str:
    """The whole page."""
    all_groups = grouped(about.runs, about.by)
    groups = with_results(all_groups)
    runs, all_runs = ([run for group in each for run in group.runs] for each in (groups, all_groups))
    specs = figures_of(runs)
    title = title_of(groups, runs)
    by_section = {name: [place for place, spec in enumerate(specs) if spec.section == name] for name in HEADINGS}
    parts = [_verdict(groups, runs)]
    parts += [tag("p", escaped(f"{sentence}."), class_="soft") for sentence in left_out(about.runs)]
    if specs:
        parts.append(_controls(groups))
        if any(len(group.runs) > 1 for group in groups):
            words = (
                "Lines are the interquartile mean over runs, bands its 95 % interval (bootstrap), as far as all went."
            )
            parts.append(tag("p", words, class_="soft"))
    for name in ("learning", "policies", "metrics"):
        parts += _figures(name, by_section[name], specs)
    parts += _section("evaluation", by_section, specs, sections.evaluations(runs))
    parts += sections.cases(about.cases)
    data = figure_data(groups, specs)
    for found in about.trajectories:
        parts += trajectory_section(found, data["figures"])
    parts += videos(all_runs, about.place)
    parts += _section("curriculum", by_section, specs, sections.curriculum(runs))
    parts += _section("time", by_section, specs, sections.times(groups))
    parts += sections.incidents(all_runs)
    parts += sections.findings(all_runs) if about.has_findings else []
    parts += [tag("h2", "Runs", id="runs"), table_of_runs(all_groups, about.place)]
    parts += sections.configuration(all_groups, about.by)
    parts += sections.reproduction(all_runs)
    note = "The figures are drawn by a script in this page; progress.csv in a run's folder has all numbers."
    body = [
        tag("h1", escaped(title)),
        tag("p", escaped(_about(runs)), class_="soft"),
        tag("main", *parts),
        tag("noscript", tag("p", note)),
    ]
    return html_page(f"{title}: report", *body, scripts=("page.js", "figures.js"), data=data)


def all_figures(groups: Sequence[RunGroup], specs: Sequence[FigureSpec]) -> list[str]:
    """The figures under their headings, and what changes them all; nothing if there are none."""
    parts = [_controls(groups)] if specs else []
    for name in HEADINGS:
        parts += _figures(name, [place for place, spec in enumerate(specs) if spec.section == name], specs)
    return parts


def title_of(groups: Sequence[RunGroup], runs: Sequence[ReportedRun]) -> str:
    """Algorithm and environment, as far as they are the same."""
    envs, algorithms = {run.env for run in runs}, {run.algorithm for run in runs}
    words = [next(iter(names)) for names in (algorithms, envs) if len(names) == 1]
    return " ".join(words) or counted(len(groups), "group") + " of runs"


def _about(runs: Sequence[ReportedRun]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    words = [shown, counted(len(runs), "run"), time.strftime("written %Y-%m-%d %H:%M")]
    return " · ".join(words)


def _verdict(groups: Sequence[RunGroup], runs: Sequence[ReportedRun]) -> str:
    parts = [tag("p", escaped(verdict_of(groups)), class_="verdict")]
    if len(runs) == 1:
        run = runs[0]
        times = time_shares(run)
        facts = {
            "steps": f"{int(run.last('timesteps_total') or 0):,}",
            "episodes": f"{int(run.last('episodes_total') or 0):,}",
            "training time": duration_text(run.last("time_total_s") or 0.0),
            "throughput": f"{rate_text(times.steps_per_s)} steps/s" if times else "-",
            "seed": str(run.seed),
        }
        pairs = (tag("div", tag("dt", escaped(name)), tag("dd", escaped(text))) for name, text in facts.items())
        parts.append(tag("dl", *pairs, class_="facts"))
    return tag("section", *parts, class_="answer", aria_label="The verdict")


def _controls(groups: Sequence[RunGroup]) -> str:
    """What changes all figures at once, and the names of the groups, which hide and show them."""
    axis = tag("select", tag("option", "environment steps", value=0), tag("option", "time", value=1), name="axis")
    before, after = [tag("label", "x ", axis)], []
    if any(len(group.runs) > 1 for group in groups):
        before.append(tag("label", tag("input", type="checkbox", name="runs"), " single runs"))
    if len(groups) > 1:
        after.append(tag("div", *(_key(place, group) for place, group in enumerate(groups)), class_="keys"))
    return figure_controls(before, after)


def _key(place: int, group: RunGroup) -> str:
    dashes = f" d{place // COLOURS % 4}" if place >= COLOURS else ""
    line = tag("path", d="M0 5H24", class_="line")
    sample = tag("svg", tag("g", line, class_=f"s c{place % COLOURS}{dashes}"), viewBox="0 0 24 10", aria_hidden="true")
    words = f"{group.label} ({len(group.runs)})" if len(group.runs) > 1 else group.label
    hint = "hide or show; with Shift, show it alone"
    return tag(
        "button", sample, escaped(words), type="button", class_="key", aria_pressed="true", data_group=place, title=hint
    )


def _section(name: str, places: dict[str, list[int]], specs: Sequence[FigureSpec], more: Sequence[str]) -> list[str]:
    """A heading, its figures and what stands below them; nothing if there is neither."""
    figures = _figures(name, places[name], specs)
    if not figures and not more:
        return []
    return [*(figures or [tag("h2", HEADINGS[name])]), *more]


def _figures(name: str, places: Sequence[int], specs: Sequence[FigureSpec]) -> list[str]:
    if not places:
        return []
    return [
        tag("h2", HEADINGS[name]),
        tag("div", *(figure_box(place, specs[place].title, specs[place].is_big) for place in places), class_="figures"),
    ]


def table_of_runs(groups: Sequence[RunGroup], place: Path) -> str:
    """How each run stands, with a link to its folder."""
    several = len(groups) > 1
    head = [
        *(["group"] if several else []),
        "run",
        "state",
        "seed",
        "return",
        "best",
        "steps",
        "solved at",
        "steps/s",
        "time",
    ]
    rows = []
    for group in groups:
        for run in group.runs:
            found, times, solved = listed(run.path, progress=run.progress), time_shares(run), solved_at(run)
            returns, steps, seconds = run.last(RETURN), run.last("timesteps_total"), run.last("time_total_s")
            best = found.progress.best if found else None
            link = tag("a", escaped(run.path.name), href=sections.link_to(run.path, place))
            cells = [
                *([cell(group.label)] if several else []),
                tag("td", link),
                cell(ended_state(run.path) or (found.state if found else "-")),
                cell("-" if run.seed is None else str(run.seed), run.seed),
                cell(number_text(returns), returns),
                cell(number_text(best), best),
                cell("-" if steps is None else f"{int(steps):,}", steps),
                cell("-" if solved is None else f"{int(solved[0]):,}", None if solved is None else solved[0]),
                cell(
                    "-" if times is None else rate_text(times.steps_per_s), None if times is None else times.steps_per_s
                ),
                cell("-" if seconds is None else duration_text(seconds), seconds),
            ]
            rows.append(tag("tr", *cells))
    return filtered_table(head, rows, "Filter runs" if len(rows) > 8 else "")
