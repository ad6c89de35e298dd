"""What Tune tells while it works, as records, events and the end of it all."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from shoal.config.sweep import Sweep
from shoal.data.number_text import counted, number_text
from shoal.data.results import numbers
from shoal.errors import ConfigError, ShoalError
from shoal.reports.records import ENDED, Event, TrialRecord, read_done, read_failure, write_done, write_trials
from shoal.runs.interrupts import Interrupts
from shoal.tune.scheduler_state import pickled, unpickled
from shoal.tune.seeds_trial import OF_TRIAL, OVER, VALUES
from shoal.tune.trial import exploits_of
from shoal.tune.trial_ids import TrialIds

WRITING_PERIOD_S = 1.0  # at least; what a killed driver has not written is in the trials' own folders
RECORDS_PER_S = 500  # that writing may take, so that a sweep of very many trials does not only write
SAVING_TIMEOUT_S = 120.0  # of trials that a signal has interrupted
PLACE_TIMEOUT_S = 5.0
MOST_DEATHS = 3  # of a trial's process, before the trial has failed
NOT_RESULTS = ("pid", "done")
POPULATIONS = ("pbt", "pb2")


@dataclass(frozen=True)
class _Process:
    """The process of a trial; Tune may have given it to another trial by the time that somebody asks for it."""

    trial: Trial
    actor: Any
    place: Any  # a reference to what it said of itself


class TuneCallback(Callback):
    """Keeps the records of a sweep while Tune runs it, and ends Tune when a signal or a mistake says so."""

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        life: str,
        trial_ids: TrialIds,
        scheduler: TrialScheduler,
        interrupts: Interrupts,
        show: Callable[[Event], None],
    ) -> None:
        self.mistake: ConfigError | None = None
        self._sweep, self._folder, self._life = sweep, folder, life
        self._trial_ids, self._scheduler, self._interrupts, self._show = trial_ids, scheduler, interrupts, show
        self._running: dict[int, _Process] = {}
        self._scheduler_state: bytes | None = None
        self._tell_tune: Callable[[int, None], None] = lambda *_: None
        self._begun = False
        self._written_at = 0.0
        self._unwritten = False

    def setup(self, *_: Any, **__: Any) -> None:
        """Take the signals back from Tune, which hears of them through us."""
        handler = signal.getsignal(signal.SIGUSR1)
        if callable(handler):
            self._tell_tune = handler
        self._interrupts.install()

    def on_step_begin(self, iteration: int, trials: list[Trial], **_: Any) -> None:  # noqa: ARG002
        """Before the first step: which trials does Tune remember."""
        if not self._begun:
            self._begun = True
            self._trial_ids.claim(trials)
            self._restore_scheduler(trials)
            self.write()

    def on_step_end(self, iteration: int, trials: list[Trial], **_: Any) -> None:  # noqa: ARG002
        """See who was paused, write what has changed, and end if it is time."""
        for number, process in list(self._running.items()):
            if process.trial.status == Trial.PAUSED:
                del self._running[number]
                process.actor.cleanup.remote()  # the next process of the trial waits for it to let go
                self._tell("paused", number, "is paused", status="paused")
        period_s = max(WRITING_PERIOD_S, len(self._trial_ids.records) / RECORDS_PER_S)
        if self._unwritten and monotonic() - self._written_at > period_s:
            self.write()
        if self._interrupts.signal is not None:
            self._interrupt()
        elif self.mistake is not None:
            raise self.mistake

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:  # noqa: ARG002
        """A trial has a process."""
        first = int(str(trial))
        actor: Any = trial.temporary_state.ray_actor
        self._running[first] = _Process(trial, actor, actor.get_auto_filled_metrics.remote())
        settings = self._trial_ids.settings_of(trial)
        for number in self._trial_ids.members(first):
            was = self._trial_ids.records[number]
            if not _is_over(was):
                word = "starts" if was.status == "waiting" else "continues"
                self._tell("started", number, word, status="running", reason="", settings=settings)

    def on_trial_result(
        self,
        iteration: int,  # noqa: ARG002
        trials: list[Trial],  # noqa: ARG002
        trial: Trial,
        result: dict[str, Any],
        **_: Any,
    ) -> None:
        """A trial has a result."""
        number = int(str(trial))
        if OVER in result:
            if OF_TRIAL in result:
                self._note_result(result[OF_TRIAL], result[VALUES])
            for each in result[OVER]:
                self._complete(each)
            return
        values = {name: value for name, value in numbers(result).items() if name not in NOT_RESULTS}
        self._note_result(number, values)

    def _note_result(self, number: int, values: dict[str, float]) -> None:
        """A trial has come to these values."""
        was = self._trial_ids.records[number]
        if _is_over(was):
            return
        found = exploits_of(self._folder / was.folder) if self._sweep.scheduler.type in POPULATIONS else []
        if len(found) > len(was.exploits):
            exploit = found[-1][0]
            told = f"copies trial {exploit.source}"
            changes = {"exploits": tuple(one for one, _ in found), "settings": exploit.settings}
            self._tell("exploited", number, told, **changes)
        shown = (
            f"{self._sweep.metric} {number_text(values[self._sweep.metric])}"
            if self._sweep.metric in values
            else "reports"
        )
        self._tell("result", number, shown, last_result=values)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:  # noqa: ARG002
        """A trial has met its criterion, or the scheduler has seen enough of it."""
        first = int(str(trial))
        process = self._running.pop(first, None)
        for number in self._trial_ids.members(first):
            self._complete(number, process)

    def _complete(self, number: int, process: _Process | None = None) -> None:
        """Take in how a trial has ended."""
        if (failure := self._failure(number)) is not None:
            if self._trial_ids.records[number].status != "failed":
                self._tell("failed", number, failure, status="failed", reason=failure)
            return
        folder = self._folder / self._trial_ids.records[number].folder
        status, reason = read_done(folder) or ("running", "")
        if status == "running":
            status, reason = "stopped early", self._why_stopped(self._trial_ids.records[number])
            folder.mkdir(parents=True, exist_ok=True)
            write_done(folder, status, reason)
            if process is not None:
                process.actor.cleanup.remote()  # saves
        if not _is_over(self._trial_ids.records[number]):
            self._tell(status, number, reason, status=status, reason=reason)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:  # noqa: ARG002
        """A trial's process died, or its training raised, which it will do again."""
        first = int(str(trial))
        self._running.pop(first, None)
        records = [self._trial_ids.records[number] for number in self._trial_ids.members(first)]
        going = [was.index for was in records if not _is_over(was) and self._failure(was.index) is None]
        for number in going:
            self._tell("note", number, "lost its process and starts again from its newest checkpoint", status="waiting")
        if not going:
            trial.max_failures = 0

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **_: Any) -> None:  # noqa: ARG002
        """A trial has failed for good."""
        first = int(str(trial))
        self._running.pop(first, None)
        for number in self._trial_ids.members(first):
            if self._trial_ids.records[number].status not in ENDED:
                reason = self._failure(number) or _failure_text(trial)
                self._tell("failed", number, reason, status="failed", reason=reason)

    def get_state(self) -> dict[str, Any] | None:
        """What Tune's snapshot must hold of the scheduler, of which it would keep nothing."""
        with contextlib.suppress(
            Exception
        ):  # a population that waits for a checkpoint just now; the one before will do
            self._scheduler_state = pickled(self._scheduler)
        return {"scheduler": self._scheduler_state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take the scheduler's state from a snapshot; the trials that it speaks of are not there yet."""
        self._scheduler_state = state["scheduler"]

    def write(self) -> None:
        """Write the records."""
        self._unwritten, self._written_at = False, monotonic()
        write_trials(self._folder, self._trial_ids.in_order)

    def close(self) -> None:
        """What is neither ended nor begun was interrupted."""
        for record in self._trial_ids.in_order:
            if record.status in ("running", "paused"):
                self._trial_ids.change(record.index, status="interrupted")
        self.write()

    def _tell(self, kind: Any, number: int, sentence: str, **changes: Any) -> None:
        record = self._trial_ids.change(number, **changes) if changes else self._trial_ids.records[number]
        self._unwritten = True
        if kind in ENDED:
            sentence = f"{kind}: {sentence}"
        self._show(Event(kind, f"trial {number} {sentence}", record))

    def _restore_scheduler(self, trials: list[Trial]) -> None:
        if self._scheduler_state is not None:
            try:
                unpickled(self._scheduler, self._scheduler_state, {trial.trial_id: trial for trial in trials})
            except Exception as error:
                self._show(
                    Event(
                        "note", f"the scheduler starts from the beginning, because its state cannot be read: {error!r}"
                    )
                )

    def _why_stopped(self, record: TrialRecord) -> str:
        value = record.last_result.get(self._sweep.metric)
        shown = f": {self._sweep.metric} {number_text(value)}" if value is not None else ""
        steps = next((n for n in ("timesteps_total", "training_iteration") if n in record.last_result), None)
        when = f" at {steps} {number_text(record.last_result[steps])}" if steps else ""
        return f"{self._sweep.scheduler.type}{shown}{when}"

    def _failure(self, number: int) -> str | None:
        failure = read_failure(self._folder / self._trial_ids.records[number].folder, self._life)
        known = any(self._sweep.metric in record.last_result for record in self._trial_ids.in_order)
        if failure is not None and failure.is_everyones and self.mistake is None and not known:
            self.mistake = ConfigError(failure.sentence)
        return failure.sentence if failure is not None else None

    def _interrupt(self) -> None:
        """Let every trial save what it has, then Tune."""
        name = signal.Signals(self._interrupts.signal or 0).name
        going = sum(len(self._trial_ids.members(first)) for first in self._running)
        saving_now = counted(going, "running trial", ("saves and ends", "save and end"))
        self._show(Event("note", f"{name}: {saving_now}"))
        saving = []
        for process in self._running.values():
            with contextlib.suppress(Exception):  # it may have died meanwhile
                place = ray.get(process.place, timeout=PLACE_TIMEOUT_S)
                _signal(place["node"], place["pid"])
                saving.append(process.actor.cleanup.remote())
        if saving:
            ray.wait(saving, num_returns=len(saving), timeout=SAVING_TIMEOUT_S)
        self._tell_tune(signal.SIGUSR1, None)


def _is_over(record: TrialRecord) -> bool:
    """Whether a trial has nothing left to do; one that failed may be tried again when the sweep goes on."""
    return record.status in ("finished", "stopped early")


def _signal(node: str, pid: int) -> None:
    """Interrupt the process of a trial, here or on another node."""
    if node == ray.get_runtime_context().get_node_id():
        os.kill(pid, signal.SIGTERM)
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    ray.remote(num_cpus=0)(os.kill).options(scheduling_strategy=there).remote(pid, int(signal.SIGTERM))


def _failure_text(trial: Trial) -> str:
    """What Tune knows of a failure."""
    error = trial.get_pickled_error()
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, ShoalError):
        return str(cause)
    lines = str(cause).splitlines() if cause is not None else []
    return lines[0] if lines else "it failed without a message"
