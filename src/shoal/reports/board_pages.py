"""The pages of a board: the list of runs, one run, several beside each other; numbers come while they are open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal.config.problems import printable
from shoal.data.number_text import counted, duration_text, number_text, percent_text, rate_text
from shoal.reports import run_sections as sections
from shoal.reports.drawing import escaped, tag
from shoal.reports.figure_data import figure_data, figures_of
from shoal.reports.page_shell import html_page
from shoal.reports.reported_runs import ReportedRun, grouped
from shoal.reports.run_list import RETURN, ListedRun
from shoal.reports.run_page import all_figures, table_of_runs, title_of
from shoal.reports.run_report import REPORT_FILE
from shoal.runs.resuming import stored_tree

HEADS = ("state", "folder", "best", "last", "steps", "changed", "size", "run", "env")
INCIDENT_HEADS = ("number", "iteration", "environment", "step", "kind", "cause")
LIST_SCRIPTS = ("page.js", "board.js")
FIGURE_SCRIPTS = ("page.js", "figures.js", "board.js")


def list_page(base: str, folder: Path, sweep: str | None) -> str:
    """All runs of the folder, or the trials of a sweep."""
    name = printable(str(folder))
    events = f"{base}events" + (f"?sweep={quote(sweep)}" if sweep is not None else "")
    filters = [
        _field("text", "Filter", "words in any column", "search"),
        _field("where", "Where", "best > 400 and lr < 1e-3", list="names"),
        tag("label", "State ", tag("select", tag("option", "all", value=""), name="state")),
        _field("columns", "Columns", "lr, learner/kl", list="names"),
    ]
    compare = tag("button", "Compare", type="button", class_="tool", id="compare", disabled="disabled")
    body = [
        _navigation(base, [] if sweep is None else [("sweep", f"{base}at/{quote(sweep)}/")]),
        tag("h1", "Trials" if sweep is not None else "Runs"),
        tag("p", escaped(name), class_="soft"),
        tag("div", *filters, compare, id="filters", role="search"),
        tag("datalist", " ", id="names"),
        tag("p", "Waiting for the first look...", id="told", class_="soft", role="status"),
        tag("main", tag("div", _empty_table(), class_="scroll", tabindex="0"), _sweeps()),
        tag("noscript", tag("p", "The board needs its script; `shoal runs` lists the same in a terminal.")),
    ]
    heads = json.dumps(HEADS)
    return html_page(
        "Runs: board", tag("div", *body, id="list", data_events=events, data_base=base, data_heads=heads),
        scripts=LIST_SCRIPTS, is_served=True,
    )  # fmt: skip


def one_run_page(base: str, name: str, listed: ListedRun, run: ReportedRun) -> str:
    """One run: how it stands, its curves, its failures and its log."""
    groups = grouped([run])
    specs = figures_of([run])
    follow = tag("label", tag("input", type="checkbox", id="follow", checked="checked"), " follow")
    heads = tag("tr", *(tag("th", head, scope="col") for head in INCIDENT_HEADS))
    incidents = tag("table", tag("thead", heads) + tag("tbody", " ", id="incidents"), class_="wide")
    links = [("report", REPORT_FILE), ("whole log", "log.txt")]
    if listed.path.parent.name == "trials":
        links.append(("sweep", "../../"))
    body = [
        _navigation(base, links),
        tag("h1", escaped(f"{listed.algorithm} {listed.env}")),
        tag("p", escaped(name), class_="soft"),
        tag("section", tag("p", " ", class_="verdict", id="standing"), tag("dl", " ", class_="facts", id="numbers"),
            class_="answer", aria_label="How it stands"),
        tag("main",
            *all_figures(groups, specs),
            tag("h2", "Incidents"), tag("p", "No environment has failed.", class_="soft", id="failures"),
            tag("div", incidents, class_="scroll tall", id="incident-table", hidden="hidden", tabindex="0"),
            tag("h2", "Log ", follow),
            tag("pre", "", id="log", tabindex="0", aria_label="The log"),
            *sections.configuration(groups, ())),
    ]  # fmt: skip
    whole = tag("div", *body, id="run", data_events="events", data_figures="figures.json" if specs else None)
    data = figure_data(groups, specs)
    return html_page(f"{name}: board", whole, scripts=FIGURE_SCRIPTS, data=data, is_served=True)


def compare_page(base: str, runs: Sequence[ReportedRun], addresses: Sequence[str], folder: Path) -> str:
    """Runs beside each other: curves in the same figures, numbers, and the settings that differ."""
    groups = grouped(runs)
    ordered = [run for group in groups for run in group.runs]
    specs = figures_of(ordered)
    query = "&".join(f"run={quote(address, safe='')}" for address in addresses)
    words = "Runs that differ in nothing but the seed are one line: their interquartile mean, with its 95 % interval."
    body = [
        _navigation(base, [("report", f"{REPORT_FILE}?{query}")]),
        tag("h1", escaped(f"Compare: {title_of(groups, ordered)}")),
        tag("p", escaped(counted(len(ordered), "run")), class_="soft"),
        tag("main",
            *([tag("p", words, class_="soft")] if len(groups) < len(ordered) else []),
            *all_figures(groups, specs),
            tag("h2", "Runs"), table_of_runs(groups, folder / REPORT_FILE),
            *sections.configuration(groups, ())),
    ]  # fmt: skip
    whole = tag("div", *body, id="several", data_figures=f"compare.json?{query}" if specs else None)
    data = figure_data(groups, specs)
    return html_page("Compare: board", whole, scripts=FIGURE_SCRIPTS, data=data, is_served=True)


def message_page(base: str | None, sentence: str) -> str:
    """A sentence in place of a page."""
    return html_page("Board", _navigation(base, []) if base else "", tag("h1", "Board"), tag("p", escaped(sentence)))


def live_numbers(run: ListedRun, sentence: str) -> dict[str, Any]:
    """What the page of a run shows on top, as texts."""
    last = run.progress.last
    facts = {
        "iteration": f"{int(last.get('training_iteration', 0)):,}",
        "steps": f"{int(last.get('timesteps_total', 0)):,}",
        "return": number_text(last.get(RETURN)),
        "best": number_text(run.progress.best),
        "episode length": number_text(last.get("episode_len_mean")),
        "steps/s": rate_text(last["timesteps_per_s"]) if "timesteps_per_s" in last else "-",
        "training time": duration_text(last.get("time_total_s", 0.0)),
        "failures": f"{int(last.get('env_failures_total', 0)):,}",
    }
    if "evaluation/episode_reward_mean" in last:
        facts["in evaluation"] = number_text(last["evaluation/episode_reward_mean"])
    for name, limit in _stop_of(run.path).items():
        share = (
            f" ({percent_text(min(last[name] / limit, 1.0))})" if name in COUNTERS and name in last and limit else ""
        )
        facts[f"stops at {name}"] = f"{number_text(limit)}{share}"
    return {"state": run.state, "standing": _standing(run, sentence), "numbers": list(facts.items())}


COUNTERS = ("timesteps_total", "training_iteration", "time_total_s", "episodes_total")
"""Results that go up from 0, so that a limit of theirs has a share that is done."""

STANDING = {
    "running": "It is training.",
    "finished": "Finished",
    "interrupted": "Stopped",
    "failed": "Failed",
    "killed": "Nobody trains it, and it left no word: it was killed, or its machine went down.",
    "new": "Nobody trains it, and it has no results.",
}


def _standing(run: ListedRun, sentence: str) -> str:
    words = STANDING[run.state] + (
        f": {sentence}" if sentence and run.state in ("finished", "interrupted", "failed") else ""
    )
    return f"{words} It can be continued with shoal resume." if run.is_resumable else words


def _stop_of(folder: Path) -> dict[str, float]:
    """When a run stops, as far as its experiment says it in numbers."""
    stop = (stored_tree(folder) or {}).get("stop")
    if not isinstance(stop, dict):
        return {}
    return {printable(name): float(limit) for name, limit in stop.items() if isinstance(limit, (int, float))}


def incident_row(line: bytes) -> list[str] | None:
    """A failure as its table shows it; None if the line is none."""
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
        if isinstance(entry, dict) and "number" in entry and "cause" in entry:
            keys = ("number", "training_iteration", "env_index", "step", "kind", "cause")
            return [printable(str(entry.get(key, "-")))[:300] for key in keys]
    return None


def _navigation(base: str, links: Sequence[tuple[str, str]]) -> str:
    found = [tag("a", words, href=address) for words, address in (("all runs", base), *links)]
    return tag("nav", *found, aria_label="Board")


def _field(name: str, words: str, example: str, type: str = "text", **more: str) -> str:
    field = tag("input", type=type, name=name, placeholder=example, autocomplete="off", spellcheck="false", **more)
    return tag("label", f"{words} ", field)


def _empty_table() -> str:
    return tag("table", tag("thead", tag("tr", " ", id="heads")) + tag("tbody", " ", id="rows"), class_="wide board")


def _sweeps() -> str:
    return tag("section", tag("h2", "Sweeps"), tag("ul", " "), id="sweeps", hidden="hidden")
