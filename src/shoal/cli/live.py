"""What a person sees while a run trains: a live view on a terminal, one plain line per iteration elsewhere."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from shoal.cli.progress import FIRST_TOLD_S, ReminderTimes, activity_phrases
from shoal.data.number_text import column_text, counted, duration_text, number_text, rate_text
from shoal.data.results import numbers
from shoal.machine.terminal import can_redraw, printable
from shoal.runs.activity import Activity, progress
from shoal.runs.logs import RateLimit
from shoal.runs.stopping import TREND_LENGTH, StopProgress, nearest_stop

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
REDRAW_S = 0.1
MOST_POINTS = 2000
LOOK_S = 1.0  # between two looks at what takes long


class View(Protocol):
    """Shows results as they come."""

    def show(self, result: Mapping[str, Any]) -> None:
        """Take in one result."""

    def say(self, line: str) -> None:
        """Show a sentence of the command's own."""

    def log(self, line: str) -> None:
        """Show a message beside the results."""


@contextmanager
def open_view(
    title: str,
    folder: Path,
    stop: Mapping[str, float],
    quiet: bool,
    log_level: str,
    activity: Callable[[], Activity],
    began: float | None = None,
) -> Iterator[View]:
    """The view that suits where the output goes; meanwhile it also shows shoal's own messages.

    `activity` tells, to any thread, what the run does at the moment; `began` is when it began, in seconds since 1970,
    if that is not now.
    """
    if quiet:
        with messages(QuietView(), log_level) as view:
            yield view
    elif can_redraw():
        from rich.console import Console
        from rich.live import Live

        live_view = LiveView(Console(), title, folder, stop, activity, began)
        with (
            Live(
                get_renderable=live_view.render,
                console=live_view.console,
                refresh_per_second=1,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live,
            messages(live_view, log_level),
            phases(live_view),
        ):
            live_view.redraw = live.refresh
            yield live_view
    else:
        plain_view = PlainView(stop)
        with messages(plain_view, log_level), phases(plain_view), plain_view.telling(activity):
            yield plain_view


class QuietView:
    """Shows no results, only messages."""

    def show(self, result: Mapping[str, Any]) -> None:
        """Take in one result."""

    def say(self, line: str) -> None:
        """Write it."""
        click.echo(line)

    def log(self, line: str) -> None:
        """Write a message to stderr."""
        click.echo(line, err=True)


class PlainView(QuietView):
    """One line per iteration, without control codes, for pipes and batch logs."""

    def __init__(self, stop: Mapping[str, float]) -> None:
        self._history = History(stop)
        self._phase = ""
        self._writing = threading.Lock()

    def show(self, result: Mapping[str, Any]) -> None:
        """Write the line at once."""
        self._history.add(result)
        self._write(plain_line(self._history))

    def say(self, line: str) -> None:
        """Write it at once."""
        self._write(line)

    def begin(self, phase: str) -> None:
        """Write what begins, before the first iteration."""
        self._phase = phase
        self._write(phase)

    @contextmanager
    def telling(self, activity: Callable[[], Activity]) -> Iterator[None]:
        """Meanwhile, what takes long gets a line now and then."""
        done = threading.Event()
        thread = threading.Thread(target=self._tell, args=(activity, done), name="shoal-view", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _tell(self, activity: Callable[[], Activity], done: threading.Event) -> None:
        reminders = ReminderTimes()
        while not done.wait(LOOK_S):
            now = activity()
            if reminders.is_time(now.since, time.monotonic()):
                self._write("; ".join(activity_phrases(now, self._phase, time.monotonic())))

    def _write(self, line: str) -> None:
        with self._writing:
            click.echo(line)
            if sys.stdout is not None:
                sys.stdout.flush()


class History:
    """What a view remembers of the results."""

    def __init__(self, stop: Mapping[str, float]) -> None:
        self.stop = stop
        self.last: dict[str, int | float] = {}
        self.returns: list[float] = []
        self._first: list[dict[str, int | float]] = []
        self._recent: deque[dict[str, int | float]] = deque(maxlen=TREND_LENGTH)
        self._stride = 1
        self._count = 0

    def add(self, result: Mapping[str, Any]) -> None:
        """Take in one result; of a long run, returns are kept in ever longer strides."""
        self.last = numbers(result)
        if not self._first:
            self._first.append(self.last)
        self._recent.append(self.last)
        if "episode_reward_mean" not in self.last:
            return
        if self._count % self._stride == 0:
            self.returns.append(self.last["episode_reward_mean"])
        self._count += 1
        if len(self.returns) > MOST_POINTS:
            self.returns = self.returns[::2]
            self._stride *= 2

    def progress(self) -> StopProgress | None:
        """The nearest stop criterion."""
        older = self._first if self._recent and self._recent[0] is not self._first[0] else []
        return nearest_stop([*older, *self._recent], self.stop)


def plain_line(history: History) -> str:
    """`iter   12  steps  24576  return  187.3  len 187.3  23k steps/s  eta 5 s`."""
    last, progress = history.last, history.progress()
    reward, length = column_text(last.get("episode_reward_mean")), column_text(last.get("episode_len_mean"))
    reached = f"return {reward:>7}  len {length:>5}"
    if (epochs := last.get("learner/num_epochs")) is not None:  # nothing is played
        reached = f"loss {last.get('learner/policy_loss', 0.0):9.4g}  epochs {epochs:5.1f}"
    line = (
        f"iter {int(last.get('training_iteration', 0)):4d}  steps {int(last.get('timesteps_total', 0)):7d}"
        f"  {reached}  {rate_text(last.get('timesteps_per_s', 0.0))} steps/s"
    )
    if "task" in last:
        line += f"  task {number_text(last['task'])}"
    if failures := last.get("env_failures_total"):
        line += f"  failures {failures}"
    if "evaluation/episode_reward_mean" in last:
        line += f"  evaluation {column_text(last['evaluation/episode_reward_mean'])}"
    if progress is not None and progress.eta_s is not None:
        line += f"  eta {duration_text(progress.eta_s)}"
    return line


class LiveView:
    """A few lines on the terminal that are drawn again as results come."""

    def __init__(
        self,
        console: Console,
        title: str,
        folder: Path,
        stop: Mapping[str, float],
        activity: Callable[[], Activity],
        began: float | None = None,
    ) -> None:
        self.console = console
        self.redraw: Callable[[], None] | None = None
        self._title = title
        self._folder = folder
        self._history = History(stop)
        self._activity = activity
        self._phase = ""
        self._began = time.monotonic() - (0.0 if began is None else max(time.time() - began, 0.0))
        self._drawn = -math.inf

    def begin(self, phase: str) -> None:
        """Show what begins, until the first iteration does."""
        self._phase = phase

    def show(self, result: Mapping[str, Any]) -> None:
        """Take in one result, and draw if the last drawing is not too recent."""
        self._history.add(result)
        if self.redraw is not None and time.monotonic() - self._drawn >= REDRAW_S:
            self.redraw()
            self._drawn = time.monotonic()

    def say(self, line: str) -> None:
        """Print a sentence above the view."""
        self.console.print(line, markup=False, highlight=False)

    log = say

    def render(self) -> RenderableType:
        """The view as it is now."""
        from rich.console import Group

        now, activity = time.monotonic(), self._activity()
        is_told = not self._history.last or now - activity.since > FIRST_TOLD_S[0]
        doing = activity_phrases(activity, self._phase, now) if is_told else []
        return Group(
            *live_lines(self._history, self._title, self._folder, now - self._began, self.console.width, doing)
        )


def live_lines(
    history: History, title: str, folder: Path, elapsed_s: float, width: int, doing: Sequence[str] = ()
) -> list[Text]:
    """The lines of the live view, none wider than `width`; `doing` says what the next result waits for."""
    from rich.text import Text

    last = history.last
    lines = [Text.assemble((title, "bold"), f"  {duration_text(elapsed_s)}  ", (tail(folder, width), "dim"))]
    if last:
        spread = f"min {column_text(last.get('episode_reward_min'))}  max {column_text(last.get('episode_reward_max'))}"
        head = f"return {column_text(last.get('episode_reward_mean')):>8}   "
        room = width - len(head) - len(spread) - 3
        lines.append(Text.assemble(head, (spread, "dim"), "   ", (sparkline(history.returns, min(room, 40)), "cyan")))
        episodes = f"{counted(int(last.get('episodes_total', 0)), 'episode')}"
        lines.append(Text(f"length {column_text(last.get('episode_len_mean')):>8}   {episodes}   {_shares(last)}"))
        steps = f"{last.get('timesteps_total', 0):,}"
        speed = f"{rate_text(last.get('timesteps_per_s', 0.0))} steps/s"
        task = f"   task {number_text(last['task'])}" if "task" in last else ""
        lines.append(Text(f"steps  {steps:>8}   {speed}   iteration {last.get('training_iteration', 0)}{task}"))
        if "evaluation/episode_reward_mean" in last:
            lines.append(Text(f"evaluation {column_text(last['evaluation/episode_reward_mean']):>4}"))
        if failures := last.get("env_failures_total"):
            lines.append(Text(f"failures {failures:>6}   of environments, each rebuilt", "yellow"))
        if progress := history.progress():
            lines.append(_bar(progress, last.get(progress.name, 0.0), width))
    lines += [Text(phrase, "dim") for phrase in doing]
    for line in lines:
        line.no_wrap = True
        line.overflow = "ellipsis"
    return lines


def _bar(progress: StopProgress, value: float, width: int) -> Text:
    from rich.text import Text

    eta = f"  eta {duration_text(progress.eta_s)}" if progress.eta_s is not None else ""
    words = f" {progress.fraction:4.0%}  {progress.name} {number_text(value)} of {number_text(progress.limit)}{eta}"
    cells = max(min(40, width - len(words)), 0)
    full = round(cells * progress.fraction)
    return Text.assemble(("━" * full, "green"), ("━" * (cells - full), "dim"), words)


def _shares(last: Mapping[str, float]) -> str:
    whole = last.get("time_this_iter_s", 0.0)
    parts = {"env": "timers/env_s", "policy": "timers/policy_s", "learning": "timers/learn_s"}
    known = {name: last[key] / whole for name, key in parts.items() if whole > 0 and key in last}
    return "  ".join(f"{name} {share:.0%}" for name, share in known.items())


def tail(folder: Path, width: int) -> str:
    """A folder with `~` for the home folder, where there is room for both."""
    home = str(Path.home())
    text = printable(str(folder))
    return f"~{text[len(home) :]}" if text.startswith(f"{home}{os.sep}") and width >= 80 else text


def sparkline(values: Sequence[float], cells: int) -> str:
    """The course of the values as block characters, at most `cells` of them."""
    if not values or cells < 1:
        return ""
    cells = min(cells, len(values))
    edges = [round(i * len(values) / cells) for i in range(cells + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if not math.isfinite(high - low):
        return ""
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


class MessageView(Protocol):
    """Shows messages."""

    def log(self, line: str) -> None:
        """Show one."""


Shown = TypeVar("Shown", bound=MessageView)


class _ToView(logging.Handler):
    """Hands messages to a view."""

    def __init__(self, view: MessageView, level: str) -> None:
        super().__init__(level)
        self._view = view
        self.addFilter(RateLimit())
        self.addFilter(lambda record: record.name != progress.name)

    def emit(self, record: logging.LogRecord) -> None:
        """Show one message."""
        self._view.log(f"{record.levelname.capitalize()}: {record.getMessage()}")


@contextmanager
def messages(view: Shown, level: str) -> Iterator[Shown]:
    """Meanwhile the view shows shoal's own messages."""
    handler = _ToView(view, level)
    log = logging.getLogger("shoal")
    log.addHandler(handler)
    try:
        yield view
    finally:
        log.removeHandler(handler)


class PhaseView(Protocol):
    """Shows what a run does before its first iteration."""

    def begin(self, phase: str) -> None:
        """Show one thing."""


class _ToPhaseView(logging.Handler):
    """Hands what begins to a view."""

    def __init__(self, view: PhaseView) -> None:
        super().__init__(logging.INFO)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Show one thing."""
        self._view.begin(record.getMessage())


@contextmanager
def phases(view: PhaseView) -> Iterator[None]:
    """Meanwhile the view shows what takes its time before the first iteration."""
    handler = _ToPhaseView(view)
    progress.addHandler(handler)
    try:
        yield
    finally:
        progress.removeHandler(handler)
