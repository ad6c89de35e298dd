"""Several seeds before the user's eyes: one line for each, as it comes on or drawn again on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.live import REDRAW_S, History, PlainView, QuietView, messages, phases, plain_line
from shoal.cli.run_view import tell_begin, tell_end, tell_start, title_of, undisturbed
from shoal.machine.terminal import can_redraw

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from shoal.config.experiment import Experiment
    from shoal.envs.importing import UserCode
    from shoal.machine.deadlines import Deadline
    from shoal.runs.run import Run


class QuietSeeds(QuietView):
    """Shows no results, only where each begins."""

    def show_seed(self, seed: int, result: Mapping[str, Any]) -> None:
        """Take in one result of a seed."""


class PlainSeeds(PlainView):
    """One line per iteration and seed, for pipes and batch logs."""

    def __init__(self, stop: Mapping[str, float]) -> None:
        super().__init__(stop)
        self._stop = stop
        self._histories: dict[int, History] = {}

    def show_seed(self, seed: int, result: Mapping[str, Any]) -> None:
        """Write the line at once."""
        history = self._histories.setdefault(seed, History(self._stop))
        history.add(result)
        self._write(f"seed {seed}  {plain_line(history)}")


class LiveSeeds:
    """One line for each seed on the terminal, drawn again as results come."""

    def __init__(self, console: Console, title: str, stop: Mapping[str, float]) -> None:
        self.console = console
        self.redraw: Callable[[], None] | None = None
        self._title, self._stop = title, stop
        self._histories: dict[int, History] = {}
        self._phase = ""
        self._drawn = 0.0

    def begin(self, phase: str) -> None:
        """Show what begins."""
        self._phase = phase

    def show_seed(self, seed: int, result: Mapping[str, Any]) -> None:
        """Take in one result, and draw if the last drawing is not too recent."""
        self._phase = ""
        self._histories.setdefault(seed, History(self._stop)).add(result)
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
        from rich.text import Text

        lines = [Text(self._title, "bold")]
        for seed, history in self._histories.items():
            lines.append(Text(f"seed {seed}  {plain_line(history)}", no_wrap=True, overflow="ellipsis"))
        if self._phase:
            lines.append(Text(self._phase, "dim"))
        return Group(*lines)


@contextmanager
def open_seeds_view(
    title: str, stop: Mapping[str, float], quiet: bool, log_level: str
) -> Iterator[QuietSeeds | PlainSeeds | LiveSeeds]:
    """The view that suits where the output goes; meanwhile it also shows shoal's own messages."""
    if quiet:
        with messages(QuietSeeds(), log_level) as quiet_view:
            yield quiet_view
    elif can_redraw():
        from rich.console import Console
        from rich.live import Live

        view = LiveSeeds(Console(), title, stop)
        with (
            Live(
                get_renderable=view.render,
                console=view.console,
                refresh_per_second=1,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live,
            messages(view, log_level),
            phases(view),
        ):
            view.redraw = live.refresh
            yield view
    else:
        with messages(PlainSeeds(stop), log_level) as plain_view, phases(plain_view):
            yield plain_view


def follow_seeds(
    experiments: Sequence[Experiment],
    *,
    new: bool,
    user_code: UserCode,
    with_code: bool,
    deadline: Deadline | None,
    quiet: bool,
) -> None:
    """Train runs that differ in nothing but the seed; the process ends here if a signal ended them.

    Of several errors the first is raised when all have ended.
    """
    from shoal.cli.output import guard_streams, report_lost_streams
    from shoal.runs.run import STUCK, Run
    from shoal.runs.seed_runs import SeedRuns

    first, count = experiments[0], len(experiments)
    ended: list[tuple[Run, bool]] = []

    def opener(experiment: Experiment, number: int) -> Callable[[], Run]:
        def opened() -> Run:
            view.say(f"{experiment.name}, seed {experiment.config.seed} ({number} of {count} runs)")
            run = Run.open(experiment, new, user_code)
            run.keeps_code = with_code
            return run

        return opened

    def begun(run: Run) -> None:
        run.on_start = partial(tell_start, run, view.say)
        tell_begin(run, view.say)

    streams = guard_streams()
    openers = [opener(experiment, number) for number, experiment in enumerate(experiments, 1)]
    runs = SeedRuns(
        openers,
        deadline,
        on_open=begun,
        on_end=lambda run, error: ended.append((run, error is not None)),
    )
    try:
        with open_seeds_view(first.name, first.stop, quiet, first.config.log_level) as view:
            for run, result in runs.results():
                view.show_seed(run.experiment.config.seed, result)
                streams = report_lost_streams(streams)
    finally:
        with undisturbed():
            for run, has_failed in ended:
                if run.done is None:
                    click.echo(f"{title_of(run)}, seed {run.experiment.config.seed}")
                    tell_end(run, has_failed)
            if sys.stdout is not None:
                sys.stdout.flush()
    if runs.errors:
        raise runs.errors[0]
    if runs.is_stuck:
        from shoal.errors import ShoalError

        raise ShoalError(STUCK)
    if runs.signal is not None:
        from shoal.machine.signals import exit_code

        sys.exit(exit_code(runs.signal))
