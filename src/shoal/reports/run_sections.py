"""The parts of a report that are tables: times, evaluations, cases, incidents, configuration, how to do it again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from shoal.data.number_text import counted, number_text, percent_text, rate_text
from shoal.data.results import numbers
from shoal.errors import ShoalError
from shoal.reports.code_folders import entering_code
from shoal.reports.drawing import chart, escaped, label, tag
from shoal.reports.labels import same_key, value_text
from shoal.reports.page_shell import cell, filtered_table
from shoal.reports.records import results_of
from shoal.reports.reported_runs import NOT_SET, SEED, ReportedRun, RunGroup
from shoal.reports.run_verdict import TIMERS, TimeShares, time_shares
from shoal.reports.run_versions import versions
from shoal.runs.bounded_files import small_bytes, small_json
from shoal.runs.incidents import FILE as INCIDENTS_FILE
from shoal.runs.incidents import read_incidents
from shoal.runs.lineage import read_lineage
from shoal.runs.trust import MARK

MOST_ROWS = 500
MOST_BARS = 12
MOST_LETTERS = 64  # of a group beside its bar
MOST_EVALUATIONS = 20  # of one run
MOST_COLUMNS = 6  # groups whose settings stand side by side
MOST_CONFIGURATIONS = 3  # of several runs, whose files stand in the page
PHASES = {"env": "environment", "policy": "actions", "learn": "learning", "communicate": "messages", "idle": "waiting"}


def link_to(target: Path, place: Path) -> str:
    """A link from a page to a folder or a file."""
    return quote(os.path.relpath(target, place.parent)) + ("/" if target.is_dir() else "")


def times(groups: Sequence[RunGroup]) -> list[str]:
    """Where the time went, beside what the environment alone would allow."""
    found = []
    for group in groups[:MOST_BARS]:
        shares = [one for run in group.runs if (one := time_shares(run)) is not None]
        if shares:
            found.append((group, shares, _mean_shares(shares)))
    if not found:
        return []
    parts = [_time_bars(found, len(groups) > 1)]
    rows = []
    for group, shares, means in found:
        name = [tag("td", escaped(group.label))] if len(groups) > 1 else []
        rows.append(tag("tr", *name, tag("td", escaped(_time_words(shares, means)), class_="long")))
    parts.append(tag("div", tag("table", tag("tbody", *rows), class_="bars wide"), class_="scroll"))
    return parts + ([tag("p", f"The first {MOST_BARS} groups.", class_="soft")] if len(groups) > MOST_BARS else [])


def _time_bars(found: Sequence[tuple[RunGroup, Sequence[TimeShares], Mapping[str, float]]], has_labels: bool) -> str:
    """A bar for each group."""
    seen = [name for name in TIMERS if any(means[name] > 0 for _, _, means in found)]
    names = [*((PHASES[name], f"p{TIMERS.index(name)}") for name in seen), ("everything else", "rest")]
    width, top, step = 480, 8 + 20 * -(-len(names) // 3), 44 if has_labels else 26
    parts = []
    for place, (words, kind) in enumerate(names):
        x, y = 160 * (place % 3), 20 * (place // 3)
        parts += [tag("rect", x=x, y=y + 3, width=14, height=11, class_=kind), label(words, x + 20, y + 13, "start")]
    for place, (group, _, means) in enumerate(found):
        at, y = 0.0, top + step * place + (18 if has_labels else 0)
        shown = group.label if len(group.label) <= MOST_LETTERS else f"{group.label[: MOST_LETTERS - 1]}…"
        parts += [label(shown, 0, y - 5, "start")] if has_labels else []
        parts.append(tag("rect", x=0, y=y, width=width, height=18, class_="rest"))
        for name in seen:
            wide = width * means[name]
            words = tag("title", escaped(f"{PHASES[name]} {percent_text(means[name])}"))
            kind = f"p{TIMERS.index(name)}"
            parts.append(tag("rect", words, x=f"{at:.1f}", y=y, width=f"{wide:.1f}", height=18, class_=kind))
            at += wide
    rows: list[list[Any]] = [["group", *(PHASES[name] for name in TIMERS), "steps/s"]]
    for group, shares, means in found:
        rate = float(np.mean([one.steps_per_s for one in shares]))
        rows.append([group.label, *(round(means[name], 6) for name in TIMERS), round(rate, 3)])
    return chart("Where the time went", width, top + step * len(found), *parts, class_="times", rows=rows)


def _mean_shares(shares: Sequence[TimeShares]) -> dict[str, float]:
    return {name: float(np.mean([one.shares.get(name, 0.0) for one in shares])) for name in TIMERS}


def _time_words(shares: Sequence[TimeShares], means: Mapping[str, float]) -> str:
    """`environment 20 %, learning 70 %; 100 steps/s; the environment alone allows 500`."""
    parts = [f"{PHASES[name]} {percent_text(share)}" for name, share in means.items() if share >= 0.005]
    rate = float(np.mean([one.steps_per_s for one in shares]))
    bounds = [one.env_limit for one in shares if one.env_limit is not None]
    limit = f"; the environment alone allows {rate_text(float(np.mean(bounds)))}" if bounds else ""
    return f"{', '.join(parts)}; {rate_text(rate)} steps/s{limit}"


def evaluations(runs: Sequence[ReportedRun]) -> list[str]:
    """The last evaluation of each run, those of `shoal evaluate`, and of a single run each of its last episodes."""
    rows = []
    for run, source, found in _evaluations(runs):
        mean = found.get("episode_reward_mean")
        names = ("ci_low", "ci_high", "min", "max")
        low, high, least, most = (found.get(f"episode_reward_{name}") for name in names)
        interval = f"{number_text(low)} to {number_text(high)}" if low is not None and high is not None else "-"
        length, episodes = found.get("episode_len_mean"), found.get("episodes_this_iter")
        cells = [
            cell(run.path.name),
            cell(source),
            cell(number_text(mean), mean),
            cell(interval),
            cell(number_text(least), least),
            cell(number_text(most), most),
            cell(number_text(length), length),
            cell(number_text(episodes), episodes),
        ]
        rows.append(tag("tr", *cells))
    if not rows:
        return []
    head = ["run", "when", "return", "95 % interval", "lowest", "highest", "length", "episodes"]
    words = "The last evaluation of each run while it trained, and those of shoal evaluate."
    parts = [tag("p", words, class_="soft")]
    parts.append(filtered_table(head, rows, "Filter evaluations" if len(rows) > 8 else ""))
    return parts + (_evaluation_episodes(runs[0]) if len(runs) == 1 else [])


def _evaluations(runs: Sequence[ReportedRun]) -> Iterator[tuple[ReportedRun, str, dict[str, float]]]:
    """Each evaluation with its run, and when it was: at so many steps, or by `shoal evaluate` of a checkpoint."""
    prefix = "evaluation/"
    for run in runs:
        places = np.flatnonzero(~np.isnan(run.column(f"{prefix}episode_reward_mean")))
        if len(places):
            steps = run.column("timesteps_total")
            row = {
                name[len(prefix) :]: column[places[-1]]
                for name, column in run.columns.items()
                if name.startswith(prefix)
            }
            known = {name: float(value) for name, value in row.items() if not np.isnan(value)}
            yield run, f"at {int(steps[places[-1]]):,} steps" if len(steps) else "in training", known
        for file in sorted(run.path.glob("evaluation_*.json"))[-MOST_EVALUATIONS:]:
            with suppress(OSError, ValueError):
                found = small_json(file)
                if isinstance(found, dict) and numbers(found).get("episode_reward_mean") is not None:
                    yield run, f"{file.stem} of {Path(str(found.get('checkpoint', ''))).name}", dict(numbers(found))


def _evaluation_episodes(run: ReportedRun) -> list[str]:
    evaluation: Mapping[str, Any] = {}
    for result in results_of(run.path):
        found = result.get("evaluation")
        evaluation = found if isinstance(found, Mapping) and found.get("episode_rewards") else evaluation
    rewards, lengths = evaluation.get("episode_rewards") or [], evaluation.get("episode_lengths") or []
    if not isinstance(rewards, list) or not isinstance(lengths, list):
        return []
    pairs = list(zip(rewards, lengths))[:MOST_ROWS]
    rows = [
        tag("tr", cell(str(place), place), cell(_text(reward), _number(reward)), cell(_text(length), _number(length)))
        for place, (reward, length) in enumerate(pairs, start=1)
    ]
    table = tag("div", filtered_table(["episode", "return", "length"], rows), class_="tall")
    return [tag("details", tag("summary", f"Its {len(rows)} episodes"), table)] if rows else []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _text(value: Any) -> str:
    return number_text(value) if isinstance(value, (int, float)) else str(value)


def cases(tables: Sequence[tuple[str, list[list[str]]]]) -> list[str]:
    """Results of cases as `shoal evaluate --cases` wrote them."""
    parts: list[str] = []
    for name, (head, *rows) in tables:
        marked = [
            tag("tr", *(cell(text, _parsed(text)) for text in row), class_="differs" if _has_error(head, row) else None)
            for row in rows[:MOST_ROWS]
        ]
        more = f"; the first {MOST_ROWS} are shown" if len(rows) > MOST_ROWS else ""
        parts += [
            tag("h2", escaped(f"Cases: {name}")),
            tag("p", escaped(f"{len(rows)} cases{more}; those that failed are marked."), class_="soft"),
            tag("div", filtered_table(head, marked, "Filter cases"), class_="tall"),
        ]
    return parts


def _parsed(text: str) -> float | None:
    with suppress(ValueError):
        value = float(text)
        return value if np.isfinite(value) else None
    return None


def _has_error(head: Sequence[str], row: Sequence[str]) -> bool:
    return any(name == "error" and text for name, text in zip(head, row))


def curriculum(runs: Sequence[ReportedRun]) -> list[str]:
    """When each run passed each stage."""
    rows = []
    for run in runs:
        passed, steps = run.column("stages_passed"), run.column("timesteps_total")
        known = np.flatnonzero(~np.isnan(passed))
        for before, after in pairwise(known.tolist()):
            if passed[after] > passed[before]:
                words = [run.path.name, f"{passed[after]:g}", f"{int(steps[after]):,}"]
                rows.append(tag("tr", cell(words[0]), cell(words[1], passed[after]), cell(words[2], steps[after])))
    return [filtered_table(["run", "stages passed", "at steps"], rows)] if rows else []


def incidents(runs: Sequence[ReportedRun]) -> list[str]:
    """Failures of environments, and workers that were replaced."""
    rows: list[str] = []
    in_all = 0
    for run in runs:
        found = read_incidents(run.path)
        in_all += len(found)
        for entry in found[: max(MOST_ROWS - len(rows), 0)]:
            cells = [
                cell(run.path.name, class_="long"),
                cell(str(entry["number"]), _number(entry["number"])),
                cell(_text(entry.get("training_iteration", "-")), _number(entry.get("training_iteration"))),
                cell(_text(entry.get("env_index", "-")), _number(entry.get("env_index"))),
                cell(_text(entry.get("step", "-")), _number(entry.get("step"))),
                cell(str(entry.get("kind", "error"))),
                tag("td", escaped(str(entry["cause"])[:300]), class_="long"),
            ]
            rows.append(tag("tr", *cells))
    restarts = sum(int(run.last("num_remote_worker_restarts") or 0) for run in runs)
    parts = [tag("h2", "Incidents")]
    if restarts:
        parts.append(tag("p", f"{counted(restarts, 'worker')} {'was' if restarts == 1 else 'were'} lost and replaced."))
    if not rows:
        return [*parts, tag("p", "No environment has failed.", class_="soft")]
    first = f"{counted(in_all, 'failure')} of environments; shoal incidents RUN and {INCIDENTS_FILE} have all of each"
    parts.append(tag("p", escaped(f"{first}{f', here are {len(rows)}' if in_all > len(rows) else ''}."), class_="soft"))
    head = ["run", "number", "iteration", "environment", "step", "kind", "cause"]
    return [*parts, tag("div", filtered_table(head, rows, "Filter incidents" if len(rows) > 8 else ""), class_="tall")]


def findings(runs: Sequence[ReportedRun]) -> list[str]:
    """What `shoal diagnose --no-play` finds in a single run."""
    if len(runs) != 1:
        return []
    from shoal.reports.diagnosis import diagnosis
    from shoal.reports.run_facts import facts_of

    try:
        found = [one for one in diagnosis(facts_of(runs[0].path)) if one.verdict in ("problem", "warning")]
    except ShoalError:  # its algorithm or environment is of a package that is not here
        return []
    if not found:
        return []
    items = [
        tag(
            "li",
            tag("b", escaped(f"{one.check}: ")),
            escaped(one.text),
            " ",
            tag("span", escaped(one.remedy), class_="soft"),
        )
        for one in found
    ]
    return [tag("h2", "Findings"), tag("ul", *items)]


def configuration(groups: Sequence[RunGroup], by: Sequence[str]) -> list[str]:
    """Every setting; marked is what differs between groups, or in a single one from the default."""
    parts = [tag("h2", "Configuration")]
    shown = groups[:MOST_COLUMNS]
    is_alone = sum(len(group.runs) for group in groups) == 1
    settings = [_settings(group.runs[0], is_alone) for group in shown]
    if len(groups) > 1:
        keys = sorted({key for one in settings for key in one})
        rows = []
        for key in keys:
            values = [one.get(key, NOT_SET) for one in settings]
            differs = len({same_key(value) for value in values}) > 1
            rows.append((not differs, key, values, differs))
        head = ["setting", *(group.label for group in shown)]
        words = "Settings that differ are marked and come first."
        if len(groups) > MOST_COLUMNS:
            words += f" The first {MOST_COLUMNS} of {len(groups)} groups."
        if by:
            words += " Within a group, other settings may differ; these are of its first run."
    else:
        defaults = _defaults(groups[0].runs[0])
        rows = []
        for key, value in sorted(settings[0].items()):
            default = defaults.get(key, NOT_SET)
            differs = bool(defaults) and same_key(value) != same_key(default)
            rows.append((not differs, key, [value, default], differs))
        head = ["setting", "value", "default"]
        words = "Settings that are not the default are marked and come first."
    rows.sort(key=lambda row: row[:2])
    marked = [
        tag(
            "tr",
            cell(key),
            *(cell(_shown(value), class_="long") for value in values),
            class_="differs" if differs else None,
        )
        for _, key, values, differs in rows
    ]
    table = tag("div", filtered_table(head, marked, "Filter settings"), class_="tall")
    return [*parts, tag("p", escaped(words), class_="soft"), table]


def _settings(run: ReportedRun, has_seed: bool) -> dict[str, Any]:
    from shoal.runs.resuming import by_dotted_key

    found = by_dotted_key(run.tree, (MARK, "search_path", "results_dir", "name", *(() if has_seed else (SEED,))))
    return {key.removeprefix("config."): value for key, value in found.items()}


def _defaults(run: ReportedRun) -> dict[str, Any]:
    """The defaults of its algorithm; empty where it is of a package that is not here."""
    from shoal.config.experiment import as_tree, experiment_from
    from shoal.runs.resuming import by_dotted_key

    try:
        tree = as_tree(experiment_from({"run": run.algorithm, "env": "CartPole-v1"}))
    except ShoalError:
        return {}
    found = by_dotted_key(tree, ("results_dir", "name", "config.env"))
    return {key.removeprefix("config."): value for key, value in found.items()}


def _shown(value: Any) -> str:
    return "-" if value is None else value_text(value)


def reproduction(runs: Sequence[ReportedRun]) -> list[str]:
    """The command that does it again, the file that it needs, and the versions of what ran."""
    parts = [tag("h2", "Do it again")]
    for run in runs[:MOST_CONFIGURATIONS]:
        file = run.path / "config.yaml"
        search = run.tree.get("search_path")
        place = entering_code(map(str, search), run.tree) if isinstance(search, list) else ""
        command = f"{place}shoal train -f {shlex.quote(str(file))} --new"
        parts.append(tag("code", escaped(command)))
        lineage = read_lineage(run.path)
        if lineage is not None:
            changes = "; ".join(lineage.changes) or "nothing changed"
            words = f"It continues {lineage.parent} from iteration {lineage.iteration}: {changes}."
            parts.append(tag("p", escaped(words)))
        with suppress(OSError):
            text = small_bytes(file).decode(errors="replace")
            inner = "\n".join(escaped(line) for line in text.splitlines())
            parts.append(tag("details", tag("summary", escaped(f"{file.name} of {run.path.name}")), tag("pre", inner)))
    if len(runs) > MOST_CONFIGURATIONS:
        parts.append(tag("p", "The others likewise, each with the config.yaml of its folder.", class_="soft"))
    rows = [tag("dt", escaped(name)) + tag("dd", escaped(text)) for name, text in versions(runs).items()]
    return [*parts, tag("h2", "Versions"), tag("dl", *rows)]
