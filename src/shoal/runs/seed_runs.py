"""Runs that differ in nothing but the seed, in one process: together where that applies, else one after another.

Each is an ordinary run in a folder of its own: it stops, saves, continues, evaluates and reproduces by itself, and has
the weights that it would have had alone. One of them that fails or stops leaves the others going.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from shoal.errors import ConfigError, EnvStartError, ShoalError
from shoal.machine.deadlines import Deadline
from shoal.runs.interrupts import Interrupts
from shoal.runs.logs import speaking_of
from shoal.runs.run import Result, Run, SharedWatch
from shoal.runs.seed_stack import MOST_TOGETHER, SeedStack, why_not_configured_together, why_not_together
from shoal.runs.trainer import Trainer
from shoal.runs.walltime import Walltime

logger = logging.getLogger("shoal.runs")

COSTLY = 0.8  # share of an iteration in the environments, from which on learning together gains next to nothing


@dataclass
class SeedRun:
    """One of the runs, and how far it has come."""

    run: Run
    results: Generator[Result, None, None]
    is_over: bool = False

    @property
    def trainer(self) -> Trainer:
        """What trains it; there once it has started."""
        assert self.run.trainer is not None
        return self.run.trainer


class SeedRuns:
    """Trains the runs that `openers` open, each when its turn comes.

    `on_open` is told of each that is opened, `on_end` of each that has ended. `errors` are what has ended some of them,
    `signal` is what has ended all. `alone` says why they train one after another, if they do.
    """

    def __init__(
        self,
        openers: Sequence[Callable[[], Run]],
        deadline: Deadline | None = None,
        on_open: Callable[[Run], object] = lambda _: None,
        on_end: Callable[[Run, Exception | None], object] = lambda _run, _error: None,
    ) -> None:
        self._waiting = list(openers)
        self._deadline = deadline
        self._on_open, self._on_end = on_open, on_end
        self._going: list[SeedRun] = []
        self._watch: SharedWatch | None = None
        self._stack = SeedStack()
        self._ended_by: int | None = None
        self.errors: list[Exception] = []
        self.is_stuck = False
        self.alone: str | None = None

    @property
    def signal(self) -> int | None:
        """The signal that has ended them."""
        heard = None if self._watch is None else self._watch.interrupts.signal
        return self._ended_by if heard is None else heard

    def results(self) -> Iterator[tuple[Run, Result]]:
        """Train all of them; yields each result of each."""
        with ExitStack() as stack:
            interrupts = stack.enter_context(Interrupts(hold=True))
            interrupts.what_is_saved = lambda: "".join(each.run.saved_words() for each in self._going)
            interrupts.when_late = self._save_meanwhile
            walltime = stack.enter_context(Walltime(self._deadline))
            self._watch = SharedWatch(interrupts, walltime, len(self._waiting))
            stack.enter_context(_kept_level())
            stack.callback(self._close)
            is_known = False  # whether they train together
            while self._goes_on():
                if is_known and self.alone is None:
                    self._start_others()
                elif not self._going:
                    self._next_started()
                yield from self._advanced(self._furthest_behind())
                if not is_known and self._going:
                    self.alone, is_known = self._why_alone(self._going[0]), True
                    if self.alone is not None and self._waiting:
                        logger.info("The seeds train one after another. %s.", self.alone)

    def _goes_on(self) -> bool:
        """Whether there is something left to train."""
        return bool(self._going) or (bool(self._waiting) and self.signal is None)

    def _why_alone(self, first: SeedRun) -> str | None:
        """Why the others wait for the first to end, if they do; its first iteration has shown what that takes."""
        share = first.run.last_result.get("timers/env_share", 0.0)
        if share > COSTLY:
            return f"{share:.0%} of the time is their environments', which training together does not shorten"
        return why_not_configured_together(first.run.experiment) or why_not_together(first.trainer)

    def _start_others(self) -> None:
        """Start those that wait, as many as train together."""
        while self._waiting and len(self._going) < MOST_TOGETHER and self.signal is None:
            if self._next_started() is None:
                return

    def _next_started(self) -> SeedRun | None:
        """Open the next run that has something to train, and let it make its trainer; None: there is none."""
        while self._waiting and self.signal is None:
            opener = self._waiting.pop(0)
            try:
                run = opener()
            except ShoalError as error:
                self.errors.append(error)
                if isinstance(error, ConfigError):
                    self._waiting.clear()  # it is the same with every seed
                continue
            run.watch = self._watch
            self._on_open(run)
            started = SeedRun(run, run.results(hold_signals=True))
            self._going.append(started)
            self._step(started)  # which yields an empty result when everything is ready
            if not started.is_over:
                started.trainer.stack = self._stack
                return started
        return None

    def _furthest_behind(self) -> list[SeedRun]:
        """Those that have taken the fewest steps: what follows from steps, as a schedule does, is equal in them."""
        if not self._going:
            return []
        least = min(each.trainer.timesteps_total for each in self._going)
        return [each for each in self._going if each.trainer.timesteps_total == least]

    def _advanced(self, members: Sequence[SeedRun]) -> Iterator[tuple[Run, Result]]:
        """One iteration of each of these."""
        assert self._watch is not None
        self._stack.begin([each.trainer for each in members])
        for each in members:
            result = self._step(each)
            if result is None:
                continue
            with self._watch.interrupts.away():
                yield each.run, result
            if each.run.outcome is not None:
                self._step(each)  # it ends

    def _step(self, each: SeedRun) -> Result | None:
        """Let a run go on to its next result; None: it has ended."""
        each.run.more_follows = bool(self._waiting) or len(self._going) > 1
        try:
            with speaking_of(each.run.folder):
                return next(each.results)
        except StopIteration:
            self._end(each, None)
        except Exception as error:
            self.errors.append(error)
            self._end(each, error)
            if isinstance(error, ConfigError | EnvStartError) and not self._going:
                self._waiting.clear()  # it is the same with every seed
        return None

    def _end(self, each: SeedRun, error: Exception | None) -> None:
        each.is_over = True
        self.is_stuck = self.is_stuck or each.run.is_stuck
        if each.run.outcome is not None and each.run.outcome.signal is not None:
            self._ended_by = each.run.outcome.signal
        self._going.remove(each)
        self._on_end(each.run, error)

    def _save_meanwhile(self, number: int) -> None:
        """Save all of them while the main thread hangs in somebody's code in spite of a signal."""
        for each in list(self._going):
            with speaking_of(each.run.folder):
                each.run.save_meanwhile(number)

    def _close(self) -> None:
        """End those that still go on, where whoever asks for results has gone."""
        for each in list(self._going):
            with suppress(Exception), speaking_of(each.run.folder):
                each.results.close()


@contextmanager
def _kept_level() -> Iterator[Any]:
    """Let what runs set of shoal's logger last until all have ended, in whatever order they do."""
    log = logging.getLogger("shoal")
    before = log.level
    log.setLevel(logging.INFO if before == logging.NOTSET else min(before, logging.INFO))
    try:
        yield
    finally:
        log.setLevel(before)
