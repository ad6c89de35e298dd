"""The processes of a vector's environments, one for each row: told what to do, listened to, and replaced when lost.

An environment that passes its deadline, dies, exits, or takes too much memory is ended with all that is below it and
started again, after `restart_delay_s`, which doubles with each failure in a row. The row answers when the new one has
begun an episode, with a new seed: its failed step is no transition. Where only the reset after a step failed, the step
counts. Every failure is an `Incident`, of whichever process, and counts for `max_failures`. What never came to life
raises.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, time
from typing import Any

import numpy as np

from shoal.data.batch import Episode, Incident
from shoal.data.number_text import counted
from shoal.data.state import State
from shoal.data.streams import reset_seed
from shoal.envs.env_limits import CLOSE_S, LONGEST_TICK_S, Limits
from shoal.envs.env_process import LENGTH, LONGEST_DELAY, TOKEN, EnvStart, Report, received, shape_of
from shoal.envs.env_processes import EnvProcesses
from shoal.envs.fork_server import Folder
from shoal.envs.forked_processes import Death, readable
from shoal.envs.process_deaths import cause_of, last_line
from shoal.envs.process_messages import message, owners_of
from shoal.envs.randomizing import EpisodeValues
from shoal.envs.scratch import folder_prefix, keep_failed
from shoal.envs.shared_rows import Phase, SharedRows, memory_barrier
from shoal.envs.vector import MOST_FAILURES_IN_A_ROW, describe, on_one_line, settings_text
from shoal.errors import EnvError, EnvStartError

MESSAGE_S = 30.0  # for a message that has begun to come
LOST = object()  # the result of a command whose process was lost meanwhile


@dataclass(frozen=True)
class Raised:
    """The result of a function of the user's that raised; the environment goes on."""

    error: BaseException


@dataclass
class Slot:
    """The worker's view of one environment's process."""

    id: int = -1
    connection: socket.socket | None = None
    generation: int = 0
    pending: list[str] = field(default_factory=list)  # commands without an answer
    sent_at: float = 0.0
    missed_deadline: str = ""  # the deadline that it has passed, while it is being ended
    nonsense: str = ""  # what it has answered that does not fit what it was asked, while it is being ended
    start_at: float | None = None  # when it is to be started again
    is_dead: bool = False
    death: Death | None = None
    step_happened: bool = False  # only the reset after it was lost
    failures_in_a_row: int = 0
    task: Any = None  # that the environment has
    task_sent: Any = None
    result: Any = None
    is_lost: bool = False  # its process was replaced while it was at the last command

    @property
    def is_ending(self) -> bool:
        """Whether it is being ended, and nothing that it says counts anymore."""
        return bool(self.missed_deadline or self.nonsense)


class EnvSlots:
    """One process per row; see the module."""

    def __init__(self, first: EnvStart, limits: Limits, max_failures: int | None = None) -> None:
        num_envs = first.num_envs
        self.task: Any = None  # given to each environment before its next reset
        self.tasks_then: list[Any] = [None] * num_envs  # those of a saved state
        self.episodes: list[Episode] = []
        self.incidents: list[Incident] = []
        self.failures = 0
        self.rows = SharedRows(num_envs, first.obs_spec, first.action_spec, actor=shape_of(first.actor))
        self.busy: set[int] = set()  # rows that have not answered yet
        self.done: list[int] = []  # rows that have
        self.group = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)  # see env_process.py
        self._first, self._plan, self._limits, self._max_failures = first, first.plan, limits, max_failures
        self._slots = [Slot() for _ in range(num_envs)]
        self._ready, self._answering = os.pipe()
        os.set_blocking(self._ready, False)
        self._partial_token = b""
        self._steps_taken = np.zeros(num_envs, np.int64)  # answers of each row that were taken in
        self._is_starting, self._is_closed = True, False
        self.tick_s = limits.tick_s
        self._next_check = 0.0
        self._processes = EnvProcesses.use()
        try:
            for row in range(num_envs):
                self._start(row, begins=False)
            while self.busy:
                self.wait_once(self.tick_s)
        except BaseException:
            self.close()
            raise
        self.done.clear()
        self._is_starting = False

    def begin(self, row: int) -> None:
        """Have a row begin an episode with its next seed."""
        self.command(row, *self._begin_command(row))

    def step(self, rows: Sequence[int], now: float) -> None:
        """Have these rows take the step whose action lies in the shared row."""
        for row in rows:
            slot = self._slots[row]
            if slot.task_sent != self.task:
                self.command(row, "task", self.task)
                slot.task_sent = self.task
            slot.pending.append("step")
            slot.sent_at = now
            self.busy.add(row)
            slot.is_lost = False
            if slot.connection is None or slot.is_dead:
                self._replace_lost(row, slot.death)
                continue
            with suppress(OSError):  # who is gone will be told of
                os.write(slot.connection.fileno(), b"s")

    def ask_for_states(self) -> list[int]:
        """Have the rows that rest tell where their environments stand; which those are."""
        resting = []
        for row, slot in enumerate(self._slots):
            if slot.connection is not None and not slot.is_dead and row not in self.busy:
                slot.result = None
                resting.append(row)
        for row in resting:
            self.command(row, "env_state")
        return resting

    def bring_back(self, row: int, env_state: State | None, history: Any, limit_s: float | None) -> None:
        """Have a row go on with its unfinished episode, by its state or by following its actions for so long."""
        state = {
            "seedings": [int(self.rows.seedings[row])],
            "failures": 0,
            "task": self.task,
            "tasks": [self.tasks_then[row]],
        }
        self._slots[row].task_sent = self.task
        self.command(row, "bring_back", env_state, history, state, limit_s)

    def result(self, row: int) -> Any:
        """What came of a row's last command; LOST if its process was replaced meanwhile."""
        slot = self._slots[row]
        return LOST if slot.is_lost else slot.result

    def tasks(self) -> list[Any]:
        """The task that each environment has."""
        return [slot.task for slot in self._slots]

    def command(self, row: int, name: str, *arguments: Any) -> None:
        """Tell a row's process what to do."""
        slot = self._slots[row]
        if name not in ("hello", "start", "begin"):
            slot.is_lost = False
        slot.pending.append(name)
        slot.sent_at = monotonic()
        self.busy.add(row)
        if slot.connection is None or slot.is_dead:
            self._replace_lost(row, slot.death)
            return
        owners = owners_of(self._plan) if name == "start" else []
        with suppress(OSError):
            slot.connection.sendall(message(name, arguments, *owners))

    def wait_once(self, timeout_s: float) -> None:
        """Wait for answers, deaths and deadlines, whatever comes first, and deal with it."""
        now = monotonic()
        starts = [slot.start_at for slot in self._slots if slot.start_at is not None]
        until = min([now + timeout_s, *starts])
        control = self._processes.control.fileno()
        heard = readable([self._ready, control], max(0.0, until - now))
        if self._ready in heard:
            self._take_tokens()
        self.take_answers()
        now = monotonic()
        if control in heard or starts or now >= self._next_check:
            self._next_check = now + self.tick_s
            self._check_processes(now)

    def episode_passed(self, row: int, place: int) -> Episode:
        """The episode that has ended at this place of a row's stretch."""
        rows, slot = self.rows, self._slots[row]
        slot.failures_in_a_row = 0
        reward, length = float(rows.passed_returns[row, place]), int(rows.passed_lengths[row, place])
        return Episode(self._plan.first_index + row, reward, length, {}, slot.task)

    def take_answers(self) -> None:
        """Take in the steps that are done."""
        news = self.rows.answered - self._steps_taken
        memory_barrier()
        for row in np.flatnonzero(news).tolist():
            slot = self._slots[row]
            if slot.is_ending:
                continue
            if slot.pending[:1] != ["step"] or news[row] != 1:
                self._distrust(row, slot, f"it answered {counted(int(news[row]), 'step')} where {_asked(slot)}")
            elif not 0 <= self.rows.taken[row] < max(self.rows.stretch[row], 1):
                steps, asked = int(self.rows.taken[row]) + 1, int(self.rows.stretch[row])
                self._distrust(row, slot, f"it took {counted(steps, 'step')} where it was asked for {asked}")
            else:
                self._steps_taken[row] += 1
                self._answered(row, slot)

    def close(self) -> None:
        """End all processes, within seconds, hung environments or not."""
        if self._is_closed:
            return
        self._is_closed = True
        alive = {slot.id: slot for slot in self._slots if slot.connection is not None and not slot.is_dead}
        for slot in alive.values():
            assert slot.connection is not None
            slot.connection.settimeout(0)
            with suppress(OSError):
                slot.connection.send(message("close", ()))
        # Those that hang get no more time than the others need to close.
        for grace_s, kills in ((CLOSE_S, False), (CLOSE_S, True)):
            if kills:
                for id in alive:
                    self._processes.end(id)
            until = monotonic() + grace_s
            while alive and (left := until - monotonic()) > 0:
                for id in list(alive):
                    if self._processes.death(id) is not None:
                        del alive[id]
                if alive:
                    readable([self._processes.control.fileno()], min(left, LONGEST_TICK_S))
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.close()
        self._processes.release()
        for descriptor in (self._ready, self._answering, self.group, self.rows.descriptor):
            os.close(descriptor)

    def _start(self, row: int, begins: bool) -> None:
        """Start the process of a row, and let it begin an episode where it takes the place of another."""
        slot = self._slots[row]
        if self._processes.is_broken:
            self._processes.release()
            self._processes = EnvProcesses.use()
        slot.generation += 1
        slot.missed_deadline, slot.nonsense, slot.start_at, slot.is_dead, slot.death = "", "", None, False, None
        self.rows.phase[row] = Phase.IDLE
        self._steps_taken[row] = self.rows.answered[row]
        slot.id, slot.connection = self._processes.start(
            self._answering, self.rows.descriptor, self.group, self._limits.memory, self._limited_folder(row)
        )
        slot.connection.settimeout(MESSAGE_S)
        slot.pending = []
        self.command(row, "hello", list(sys.path), row, slot.generation)
        self.command(row, "start", replace(self._first, row=row))
        if begins:
            slot.task_sent = self.task
            self.command(row, *self._begin_command(row))

    def _folder_name(self, row: int) -> str:
        return f"{folder_prefix(self._plan.context(row).env_index)}*"

    def _limited_folder(self, row: int) -> Folder | None:
        root, limit = self._plan.scratch, self._limits.disk
        return None if root is None or limit is None else Folder(root, self._folder_name(row), limit)

    def _keep_scratch(self, row: int) -> str:
        """Put away what the environment of a lost process has written; where that is now."""
        if self._plan.scratch is None:
            return ""
        kept = [keep_failed(str(folder)) for folder in Path(self._plan.scratch).glob(self._folder_name(row))]
        return next(filter(None, kept), "")

    def _begin_command(self, row: int) -> tuple[Any, ...]:
        slot = self._slots[row]
        slot.task_sent = self.task
        return "begin", int(self.rows.seedings[row]), slot.failures_in_a_row, self.task, self.tasks_then[row]

    def _take_tokens(self) -> None:
        """Take in the answers that are there."""
        try:
            data = os.read(self._ready, 65_536)
        except BlockingIOError:
            return
        data = self._partial_token + data
        whole = len(data) // TOKEN.size * TOKEN.size
        self._partial_token = data[whole:]
        for row, generation, is_step in TOKEN.iter_unpack(data[:whole]):
            slot = self._slots[row]
            if is_step or generation != slot.generation or slot.is_ending:
                continue
            if slot.pending and slot.pending[0] != "step":
                self._answered(row, slot)
            else:
                self._distrust(row, slot, f"it answered a command where {_asked(slot)}")

    def _answered(self, row: int, slot: Slot) -> None:
        command = slot.pending.pop(0)
        slot.sent_at = monotonic()  # the next one is seen from now on
        if command != "step" or self.rows.has_report[row]:
            assert slot.connection is not None
            try:
                length = LENGTH.unpack(received(slot.connection, LENGTH.size))[0]
                report: Report = pickle.loads(received(slot.connection, length))
            except (OSError, EOFError):
                slot.pending.insert(0, command)
                self._processes.end(slot.id)  # its death will be reported
                return
            self._take_report(row, slot, command, report)
        if not slot.pending and slot.start_at is None:
            self.busy.discard(row)
            self.done.append(row)

    def _take_report(self, row: int, slot: Slot, command: str, report: Report) -> None:
        if report.episodes:
            slot.failures_in_a_row = 0
            self.episodes += report.episodes
        for incident in report.incidents:
            self._add_incident(incident)
        if report.error is not None and command == "call":
            slot.result = Raised(report.error)
            return
        if report.error is not None:
            if command == "start" and not self._is_starting:
                self._replace_lost(row, None, str(report.error))
                return
            raise report.error
        if command in ("begin", "step"):
            slot.task = report.result
        elif command == "bring_back":
            slot.result, slot.task = report.result
        else:
            slot.result = report.result
        if command == "begin" and slot.is_lost:
            self._write_lost_step(row, slot)

    def _check_processes(self, now: float) -> None:
        """See who has died, who is late and who is to be started again."""
        for row, slot in enumerate(self._slots):
            if slot.start_at is not None:
                if now >= slot.start_at:
                    self._start(row, begins=True)
                continue
            if slot.is_dead:
                continue
            death = self._processes.death(slot.id)
            if death is not None:
                slot.is_dead, slot.death = True, death
                self._take_tokens()  # it may have answered before it died
                self.take_answers()
                if slot.pending == ["env_state"]:  # it is replaced at its next step, which cannot happen
                    slot.pending.clear()
                    self.busy.discard(row)
                    self.done.append(row)
                elif slot.pending:
                    self._replace_lost(row, death)
            elif slot.pending and not slot.is_ending:
                slot.missed_deadline = self._passed_deadline(row, slot, now)
                if slot.missed_deadline:
                    self._processes.end(slot.id, stack=True)

    def _distrust(self, row: int, slot: Slot, told: str) -> None:
        """End a process whose answers are not those to its questions: whose numbers they are, nobody can tell."""
        slot.nonsense = f"ProcessError: {told}; does its code fork, and both go on?"
        self.rows.taken[row] = 0
        self._processes.end(slot.id)

    def _passed_deadline(self, row: int, slot: Slot, now: float) -> str:
        """The deadline that a row has passed, in words; empty if none."""
        phase = Phase(int(self.rows.phase[row]))
        memory_barrier()
        began = float(self.rows.began[row])
        if phase is Phase.IDLE:  # it has not even seen its command
            if slot.pending[0] == "hello":  # nor has it been forked, perhaps
                return ""
            phase = Phase.STEP if slot.pending[0] == "step" else Phase.RESET
            began = slot.sent_at
        return self._limits.passed_deadline(phase, now - began)

    def _replace_lost(self, row: int, death: Death | None, error: str = "") -> None:
        """Write down the loss of a process, and have it started again; or give up when it is one too many."""
        slot, rows = self._slots[row], self.rows
        at_step = slot.pending[:1] == ["step"] or slot.pending[:2] == ["task", "step"]
        ended = at_step and bool(rows.ended[row]) and rows.phase[row] != Phase.IDLE
        slot.step_happened = ended
        in_step = at_step and not ended
        kind, cause = cause_of(death, slot.missed_deadline, self._limits, error or slot.nonsense)
        if self._is_starting:
            tail = (
                f"; the last that it printed: {last_line(death.output)}" if death is not None and death.output else ""
            )
            raise EnvStartError(f"env {self._plan.maker.name}: its process was lost while it started: {cause}{tail}")
        if not slot.is_dead:  # it could not make its environment, and is of no use
            self._processes.end(slot.id)
            slot.is_dead = True
        if ended:
            index = self._plan.first_index + row
            reward, length = float(rows.episode_reward[row]), int(rows.episode_length[row])
            self.episodes.append(Episode(index, reward, length, {}, slot.task))
            slot.failures_in_a_row = 0
        moved = in_step and rows.lengths[row] > 0
        slot.failures_in_a_row = 1 if moved else slot.failures_in_a_row + 1
        self._add_incident(self._incident(row, kind, cause, death, in_step))
        if slot.failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            times = f"It failed {MOST_FAILURES_IN_A_ROW} times in a row without one good step."
            raise EnvError(f"{describe(self.incidents[-1])}\n{times}")
        slot.is_lost = True
        slot.pending, slot.task = [], None
        if slot.connection is not None:
            slot.connection.close()
            slot.connection = None
        slot.generation += 1
        doublings = min(2 ** (slot.failures_in_a_row - 1), LONGEST_DELAY)
        slot.start_at = monotonic() + self._limits.restart_delay_s * doublings

    def _write_lost_step(self, row: int, slot: Slot) -> None:
        """A new process has begun where the step of another was lost."""
        rows = self.rows
        rows.seeded[row] = True
        rows.failed[row] = not slot.step_happened
        if not slot.step_happened:
            rows.rewards[row], rows.terminated[row], rows.truncated[row], rows.valid[row] = 0, True, False, False

    def _add_incident(self, incident: Incident) -> None:
        self.incidents.append(incident)
        self.failures += 1
        limit = self._max_failures
        if limit is not None and self.failures > limit:
            count = f"That was failure {self.failures} and max_env_failures is {limit}."
            raise EnvError(f"{describe(incident)}\n{count}")

    def _incident(self, row: int, kind: str, cause: str, death: Death | None, in_step: bool) -> Incident:
        rows, index = self.rows, self._plan.first_index + row
        seeding, resets = int(rows.seeded_by[row]), int(rows.resets[row])
        randomizer = self._plan.randomizer
        drawn = EpisodeValues() if randomizer is None else randomizer.draw(index, max(seeding, 1), resets)
        task = self._slots[row].task
        action = self._first.action_spec.decode(rows.actions[row : row + 1])[0] if in_step else None
        return Incident(
            env_index=index,
            worker_index=self._plan.worker_index,
            seed=reset_seed(self._first.seed, index, seeding),
            steps_since_seed=int(rows.since_seed[row]) + in_step,
            step=int(rows.lengths[row]) + 1 if in_step else 0,
            action=on_one_line(action) if in_step else "none, in reset",
            cause=cause,
            traceback="",
            settings=settings_text(task, drawn),
            kind=kind,
            exit_code=None if death is None else death.status,
            output="" if death is None else death.output,
            scratch=self._keep_scratch(row),
            time=time(),
            seeding=seeding,
            task=task,
            options=drawn.options,
            env_config=drawn.env_config,
        )


def _asked(slot: Slot) -> str:
    """What a process is at, for the end of a sentence on what it has answered."""
    return f"it was asked for one {slot.pending[0]}" if slot.pending else "nothing was asked of it"
