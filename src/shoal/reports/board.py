"""What a board of runs answers: which address of it has which page, and what its pages are told while they are open.

The addresses below `at/` are the folders themselves: `at/first/PPO_CartPole-v1_.../` is the page of that run. Only what
a look at the folder has found is ever opened, so an address cannot lead out of it. Nothing is written.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from shoal.config.problems import printable
from shoal.data.results import plain_json
from shoal.reports import board_pages as pages
from shoal.reports.analysis import Analysis
from shoal.reports.answer import answer_of
from shoal.reports.board_news import ListNews, shown_name
from shoal.reports.figure_data import figure_data, figures_of
from shoal.reports.followed_run import GrowingFile
from shoal.reports.page import page as sweep_page
from shoal.reports.page_shell import json_text
from shoal.reports.reported_runs import ReportedRun, grouped, read_run
from shoal.reports.run_list import ListedRun
from shoal.reports.run_page import run_page
from shoal.reports.run_report import REPORT_FILE, report_input
from shoal.reports.watched_runs import LOOK_S, Sight, WatchedRuns
from shoal.runs.bounded_files import open_regular
from shoal.runs.incidents import FILE as INCIDENTS_FILE
from shoal.runs.outcomes import read_outcome

LOG_FILE = "log.txt"
LOG_TAIL = 1 << 16  # bytes of a log that a page begins with
MOST_LOG = 1 << 26  # bytes of a log that are sent as a file
MOST_LINES = 500  # of a log in one message
MOST_INCIDENTS = 100  # the newest, that a page shows
MOST_COMPARED = 100
MOST_COLUMNS = 20
VIDEOS = {".mp4": "video/mp4", ".gif": "image/gif"}

Query = Mapping[str, Sequence[str]]
Wait = Callable[[float], bool]
"""Waits so many seconds; True if the board ends."""
Message = tuple[str, Any]


@dataclass(frozen=True)
class Page:
    """An answer: markup, JSON, text or the bytes of a file."""

    content: bytes
    kind: str = "text/html; charset=utf-8"
    code: int = 200


@dataclass(frozen=True)
class News:
    """An answer that goes on for as long as somebody listens; None says that there is no news."""

    messages: Callable[[Wait], Iterator[Message | None]]


class Board:
    """A folder of runs; `base` is what every address begins with."""

    def __init__(self, folder: Path, base: str = "/") -> None:
        self.folder = folder
        self.base = base
        self._root = WatchedRuns(folder)
        self._trials: dict[str, WatchedRuns] = {}

    def look(self) -> Sight:
        """The runs and sweeps of the folder; trials of sweeps are not among them."""
        return self._root.look()

    def answer(self, path: str, query: Query) -> Page | News | None:
        """What is at an address, without its base; None if there is nothing."""
        if path in ("", "events"):
            runs = self._listed_at(_first(query, "sweep"))
            if runs is None:
                return None
            if path == "":
                return _html(pages.list_page(self.base, self.folder, _first(query, "sweep")))
            return News(lambda wait: self._list_messages(runs, query, wait))
        if path in ("at/compare", f"at/{REPORT_FILE}", "at/compare.json"):
            return self._of_several(path, [run for one in query.get("run", ()) if (run := self.run_at(one))])
        if path == "at" or path.startswith("at/"):
            return self._in_folder(path[3:])
        return None

    def run_at(self, address: str) -> ListedRun | None:
        """The run at an address, also if it is a trial of a sweep."""
        address = quote(unquote_to_bytes(address.strip("/")))
        found = self.look().runs.get(address)
        if found is not None:
            return found
        sweep, is_trial, trial = address.rpartition("trials/")
        if not is_trial:
            return None
        trials = self._trials_of(sweep.rstrip("/"))
        return None if trials is None else trials.look().runs.get(trial)

    def _listed_at(self, sweep: str | None) -> WatchedRuns | None:
        return self._root if sweep is None else self._trials_of(quote(unquote_to_bytes(sweep.strip("/"))))

    def _trials_of(self, sweep: str) -> WatchedRuns | None:
        found = self.look().sweeps.get(sweep)
        if found is None:
            return None
        place = found / "trials"
        if place.is_symlink() or not place.is_dir():
            return None
        return self._trials.setdefault(sweep, WatchedRuns(place))

    def _in_folder(self, path: str) -> Page | News | None:
        """The page of a run or of a sweep, or a file of it."""
        place, _, name = path.rpartition("/")
        run = self.run_at(place)
        if run is not None:
            return self._of_run(run, name)
        sweep = self.look().sweeps.get(quote(unquote_to_bytes(place)))
        if sweep is not None and name in ("", "index.html"):
            return _html(sweep_page(answer_of(Analysis(sweep))))
        return self._video(place, name)

    def _of_run(self, run: ListedRun, name: str) -> Page | News | None:
        if name == "":
            return _html(pages.one_run_page(self.base, shown_name(run.path, self.folder), run, read_run(run.path)))
        if name == "events":
            return News(lambda wait: self._run_messages(run.path, wait))
        if name == "figures.json":
            return _figures([read_run(run.path)])
        if name == REPORT_FILE:
            return self._report([read_run(run.path)], run.path)
        if name == LOG_FILE:
            with open_regular(run.path / LOG_FILE) as file:
                file.seek(max(os.fstat(file.fileno()).st_size - MOST_LOG, 0))
                return Page(file.read(MOST_LOG), "text/plain; charset=utf-8")
        return self._video(self._address(run.path), name)

    def _of_several(self, path: str, chosen: Sequence[ListedRun]) -> Page | None:
        if not chosen:
            return None
        runs = [read_run(run.path) for run in chosen[:MOST_COMPARED]]
        if path.endswith(".json"):
            return _figures(runs)
        if path.endswith(REPORT_FILE):
            return self._report(runs, self.folder)
        return _html(pages.compare_page(self.base, runs, [self._address(run.path) for run in chosen], self.folder))

    def _report(self, runs: Sequence[ReportedRun], folder: Path) -> Page:
        """What `shoal report` would write there; of the parents of forks, those that a look has found."""
        about = report_input(runs, folder / REPORT_FILE, parents=self._is_known)
        return _html(run_page(about))

    def _is_known(self, folder: Path) -> bool:
        return folder.is_relative_to(self.folder) and self.run_at(self._address(folder)) is not None

    def _video(self, place: str, name: str) -> Page | None:
        """A video in the folder of a run, or in a folder of it."""
        kind = VIDEOS.get(os.path.splitext(name)[1].lower())
        parts = [os.fsdecode(unquote_to_bytes(part)) for part in (*place.split("/"), name)]
        if kind is None or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
            return None
        inner: list[str] = []
        while parts:
            inner.insert(0, parts.pop())
            run = self.run_at(quote(os.fsencode("/".join(parts))))
            if run is None:
                continue
            path = run.path
            for part in inner[:-1]:
                path = path / part
                if not stat.S_ISDIR(path.lstat().st_mode):
                    return None
            with open_regular(path / inner[-1]) as file:
                return Page(file.read(), kind)
        return None

    def _address(self, run: Path) -> str:
        return self._root.address(run)

    def _list_messages(self, watched: WatchedRuns, query: Query, wait: Wait) -> Iterator[Message | None]:
        """All runs, and then what changes."""
        columns = [name for name in (_first(query, "columns") or "").split(",") if name][:MOST_COLUMNS]
        news = ListNews(self._root, columns, (_first(query, "where") or "").strip())
        while True:
            message = news.since_last(watched.look())
            yield None if message is None else ("runs", message)
            if wait(LOOK_S):
                return

    def _run_messages(self, folder: Path, wait: Wait) -> Iterator[Message | None]:
        """The numbers of a run, the new lines of its log, and its failures, as they come."""
        log = GrowingFile(folder / LOG_FILE, tail=LOG_TAIL)
        failures = GrowingFile(folder / INCIDENTS_FILE)
        kept: deque[list[str]] = deque(maxlen=MOST_INCIDENTS)
        count, address, told = 0, self._root.address(folder), None
        while True:
            run = self.run_at(address)
            if run is None:
                yield "gone", {}
                return
            is_quiet = told is run
            if not is_quiet:
                outcome = read_outcome(folder) if run.state != "running" else None
                sentence = printable(outcome.sentence.splitlines()[0]) if outcome and outcome.sentence else ""
                yield "run", {"now": time.time(), "changed": run.changed, **pages.live_numbers(run, sentence)}
                told = run
            lines, is_again = log.new_lines()
            if lines or is_again:
                shown = [line.decode(errors="replace") for line in lines[-MOST_LINES:]]
                yield "log", {"lines": [_log_line(line) for line in shown], "again": is_again}
                is_quiet = False
            lines, is_again = failures.new_lines()
            if is_again:
                kept.clear()
                count = 0
            found = [row for line in lines if (row := pages.incident_row(line)) is not None]
            if found:
                count += len(found)
                kept.extend(found)
                yield "incidents", {"rows": list(kept), "count": count}
                is_quiet = False
            if is_quiet:
                yield None
            if wait(LOOK_S if run.state != "running" else LOOK_S / 2):
                return


def _html(text: str) -> Page:
    return Page(text.encode(errors="replace"))


def _figures(runs: Sequence[ReportedRun]) -> Page:
    groups = grouped(runs)
    data = figure_data(groups, figures_of([run for group in groups for run in group.runs]))
    return Page(json_text(data).encode(), "application/json")


def _first(query: Query, name: str) -> str | None:
    return next(iter(query.get(name, ())), None)


def _log_line(line: str) -> str:
    """A line of a log as text: tabs stay, other control characters are shown."""
    return "\t".join(map(printable, line[:4000].split("\t")))


def event_bytes(message: Message | None) -> bytes:
    """A message as a stream of server-sent events has it; no news is a comment, by which a lost listener is noticed."""
    if message is None:
        return b":\n\n"
    kind, data = message
    return f"event: {kind}\ndata: {json.dumps(plain_json(data), allow_nan=False)}\n\n".encode()
