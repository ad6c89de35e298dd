"""What a person sees of a sweep: a live table on a terminal, one line per event elsewhere, the answer at the end."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from shoal.cli.live import REDRAW_S, messages, tail
from shoal.config.problems import printable
from shoal.config.sweep import trial_count
from shoal.data.number_text import counted, duration_text, number_text, rate_text
from shoal.machine.terminal import can_redraw
from shoal.reports.curves import axis_of
from shoal.reports.labels import all_settings, differing, settings_text, short_names, value_text
from shoal.reports.records import Event, TrialRecord, read_trials
from shoal.reports.tables import aligned, axis_text, fitted, reached_text, status_counts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from shoal.config.sweep import Sweep
    from shoal.reports.analysis import Analysis
    from shoal.tune.sweep_run import SweepRun

SUMMARY_EVERY_S = 30.0
MOST_ROWS = 15
STYLES = {"failed": "red", "stopped early": "dim", "running": "green"}


class TuneView(Protocol):
    """Shows events as they come."""

    def show(self, event: Event) -> None:
        """Take in one event."""

    def log(self, line: str) -> None:
        """Show a message beside the events."""


@contextmanager
def open_tune_view(run: SweepRun, quiet: bool) -> Iterator[TuneView]:
    """The view that suits where the output goes; meanwhile it also shows shoal's own warnings."""
    overview = TrialOverview(run.sweep, read_trials(run.folder))
    if run.done is None:
        how = f"continues with {overview.counts()}" if overview.records else counted(trial_count(run.sweep), "trial")
        click.echo(f"{run.sweep.name}: {how} in {run.folder}")
        sys.stdout.flush()
    if quiet:
        with messages(QuietTuneView(), "WARNING") as quiet_view:
            yield quiet_view
    elif can_redraw():
        from rich.console import Console
        from rich.live import Live

        view = LiveTuneView(Console(), overview, run.folder)
        with (
            Live(
                get_renderable=view.render,
                console=view.console,
                refresh_per_second=1,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live,
            messages(view, "WARNING"),
        ):
            view.redraw = live.refresh
            yield view
    else:
        with messages(PlainTuneView(overview), "WARNING") as plain_view:
            yield plain_view


class TrialOverview:
    """What is known of the trials, and how it is put in words."""

    def __init__(self, sweep: Sweep, records: Iterable[TrialRecord] = ()) -> None:
        self.sweep = sweep
        self.records = {record.index: record for record in records}

    def add(self, event: Event) -> None:
        """Take in one event."""
        if event.record is not None:
            self.records[event.record.index] = event.record

    def score(self, record: TrialRecord) -> float | None:
        """The last value of the metric."""
        return record.last_result.get(self.sweep.metric)

    def ranked(self) -> list[TrialRecord]:
        """The trials that have a score and did not fail, best first."""
        sign = -1 if self.sweep.mode == "max" else 1
        able = [record for record in self.records.values() if record.status != "failed"]
        known = [(sign * score, record) for record in able if (score := self.score(record)) is not None]
        return [record for _, record in sorted(known, key=lambda pair: (pair[0], pair[1].index))]

    def counts(self) -> str:
        """`12 of 20 trials: 4 running, 5 finished, 3 stopped early`."""
        begun = [record for record in self.records.values() if record.status != "waiting"]
        total = max(trial_count(self.sweep), len(self.records))
        return f"{len(begun)} of {counted(total, 'trial')}" + (f": {status_counts(begun)}" if begun else "")

    def paths(self) -> tuple[list[str], dict[str, str]]:
        """The settings that differ so far, and how they are called."""
        records = list(self.records.values())
        settings = all_settings(self.sweep)
        return differing(settings, records), short_names(setting.path for setting in settings)

    def settings(self, record: TrialRecord) -> str:
        """What a trial tries."""
        names = short_names(setting.path for setting in all_settings(self.sweep))
        seed = [] if record.seed is None or self.sweep.seeds == 1 else [f"seed {record.seed}"]
        return ", ".join([settings_text(record, list(record.settings), names), *seed]).removeprefix(", ")

    def shown(self, most: int) -> list[TrialRecord]:
        """The best trials and those that run, at most `most`, best first."""
        ranked = self.ranked()
        running = [record for record in self.records.values() if record.status == "running"]
        best = ranked[: max(most - len(running), most // 2)]
        chosen = {record.index for record in (*best, *running[: most - len(best)])}
        others = [record for record in running if self.score(record) is None]
        return [record for record in (*ranked, *others) if record.index in chosen]


class QuietTuneView:
    """Shows no events, only messages."""

    def show(self, event: Event) -> None:
        """Take in one event."""

    def log(self, line: str) -> None:
        """Write a message to stderr."""
        click.echo(line, err=True)


class PlainTuneView(QuietTuneView):
    """One line per event, without control codes, for pipes and batch logs; results are summed up now and then."""

    def __init__(self, overview: TrialOverview, clock: Callable[[], float] = time.monotonic) -> None:
        self._overview = overview
        self._clock = clock
        self._began = self._told = clock()

    def show(self, event: Event) -> None:
        """Write its line at once, or of a result nothing, if the last summary is recent."""
        self._overview.add(event)
        if event.kind == "result":
            if self._clock() - self._told < SUMMARY_EVERY_S:
                return
            self._told = self._clock()
            line = self._summary()
        else:
            line = event_line(event, self._overview)
        click.echo(line)
        sys.stdout.flush()

    def _summary(self) -> str:
        line = f"{duration_text(self._clock() - self._began)}: {self._overview.counts()}"
        if ranked := self._overview.ranked():
            best = ranked[0]
            line += (
                f"; best is trial {best.index}, {self._overview.sweep.metric} {number_text(self._overview.score(best))}"
            )
        return line


def event_line(event: Event, overview: TrialOverview) -> str:
    """The first line of an event's sentence, with the settings where they are new."""
    line = printable(event.sentence.strip().partition("\n")[0])
    if event.kind in ("started", "exploited") and event.record is not None and event.record.settings:
        line += f": {overview.settings(event.record)}"
    return line


class LiveTuneView:
    """A table on the terminal that is drawn again as events come; failures are printed above it, to stay."""

    def __init__(self, console: Console, overview: TrialOverview, folder: Path) -> None:
        self.console = console
        self.redraw: Callable[[], None] | None = None
        self._overview = overview
        self._folder = folder
        self._began = time.monotonic()
        self._drawn = -math.inf

    def show(self, event: Event) -> None:
        """Take in one event, and draw if the last drawing is not too recent."""
        self._overview.add(event)
        if event.kind in ("failed", "note"):
            self.log(event_line(event, self._overview))
        if self.redraw is not None and time.monotonic() - self._drawn >= REDRAW_S:
            self.redraw()
            self._drawn = time.monotonic()

    def log(self, line: str) -> None:
        """Print a message above the table."""
        self.console.print(line, markup=False, highlight=False)

    def render(self) -> RenderableType:
        """The view as it is now."""
        from rich.console import Group

        elapsed, size = time.monotonic() - self._began, self.console.size
        return Group(*overview_lines(self._overview, self._folder, elapsed, size.width, size.height))


def overview_lines(overview: TrialOverview, folder: Path, elapsed_s: float, width: int, height: int) -> list[Text]:
    """The lines of the live view, none wider than `width`, and fewer than `height`."""
    from rich.text import Text

    records = overview.records.values()
    steps = math.fsum(record.last_result.get("timesteps_total", 0) for record in records)
    running = [record for record in records if record.status == "running"]
    speed = math.fsum(record.last_result.get("timesteps_per_s", 0) for record in running)
    about = [f"score: {overview.sweep.metric}, {overview.sweep.mode}"] if overview.sweep.metric else []
    about += [f"{int(steps):,} steps"] if steps else []
    about += [f"{rate_text(speed)} steps/s"] if speed else []
    lines = [
        Text.assemble((overview.sweep.name, "bold"), f"  {duration_text(elapsed_s)}  ", (tail(folder, width), "dim")),
        Text("   ".join(about), "dim"),
        Text(overview.counts()),
    ]
    shown = overview.shown(max(min(height - 6, MOST_ROWS), 1))
    if shown:
        lines += _table(overview, shown, width)
        if len(shown) < len(overview.records):
            lines.append(Text(f"  and {len(overview.records) - len(shown)} more", "dim"))
    else:
        lines.append(Text("the first trials are starting", "dim"))
    for line in lines:
        line.no_wrap = True
        line.overflow = "ellipsis"
    return lines[: max(height - 1, 1)]


def _table(overview: TrialOverview, shown: Sequence[TrialRecord], width: int) -> list[Text]:
    from rich.text import Text

    axis = axis_of(shown)
    columns = [
        ["trial", *(str(record.index) for record in shown)],
        ["score", *(number_text(overview.score(record)) for record in shown)],
        [axis_text(axis), *(reached_text(record, axis) for record in shown)],
        ["status", *(record.status for record in shown)],
    ]
    paths, names = overview.paths()
    more = ([names[path], *(value_text(record.settings.get(path)) for record in shown)] for path in paths)
    head, *rows = aligned(fitted(columns, more, width)[0], 3)
    styles = [STYLES.get(record.status, "") for record in shown]
    return [Text(head, "bold"), *(Text(row, style) for row, style in zip(rows, styles, strict=True))]


def tell_end(run: SweepRun, analysis: Analysis | None) -> None:
    """Say how the sweep ended, what is best and what matters, and what to type next."""
    if run.outcome is None:
        return
    words = {"stopped": "Finished", "interrupted": "Stopped", "failed": "Failed"}[run.outcome.kind]
    click.echo(f"{words}: {run.outcome.sentence.splitlines()[0]}")
    rows = [("sweep", str(run.folder))]
    if run.outcome.kind == "interrupted":
        rows.append(("resume", f"shoal tune --resume {shlex.quote(str(run.folder))}"))
    if analysis is not None and analysis.records:
        from shoal.reports.answer import answer_lines, answer_of

        answer = answer_of(analysis)
        width = max(min(shutil.get_terminal_size().columns, 120), 40)
        click.echo("\n".join([*answer_lines(answer, width), ""]))
        if (run.folder / "index.html").exists():
            rows.append(("page", str(run.folder / "index.html")))
        rows += answer.commands
    longest = max(len(word) for word, _ in rows)
    for word, what in rows:
        click.echo(f"  {word:<{longest}}  {what}")
