"""N environments in processes of their own behind the `Vector` contract.

What is promised:

- Each environment has a process (`envs/env_process.py`), forked by one that holds neither Ray nor PyTorch
  (`envs/fork_server.py`). Observations, rewards, flags and actions lie in memory that both share
  (`envs/shared_rows.py`); a step costs one byte there and eight back.
- A sampler may give actions to any rows (`send`) and take those that have answered (`wait`), in whatever order; `step`
  does that for all rows. A row's own numbers are the same either way: they depend on its seeds and actions alone.
- An environment that raises or gives nonsense is rebuilt in its process, by the same guard as everywhere. One that
  passes its deadline, dies, exits, or takes too much memory is ended with all that is below it and started again, after
  `restart_delay_s`, which doubles with each failure in a row. The row answers when the new one has begun an episode,
  with a new seed: its failed step is no transition. Where only the reset after a step failed, the step counts.
- Every failure is an `Incident`, of whichever process, and counts for `max_failures`. What never came to life raises.
- `close` takes seconds at most, hung environments or not, and leaves no process behind; nor does a worker that is
  killed.
- Counters are those of `PythonVector`, so a run may be continued with environments in processes or without.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from math import ceil
from shutil import rmtree
from time import monotonic, time
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Episode, Incident, Parts
from shoal.data.streams import reset_seed
from shoal.envs.env_process import (
    LENGTH,
    LONGEST_DELAY,
    OUT_OF_MEMORY,
    TOKEN,
    EnvPlan,
    FirstLook,
    Report,
    Start,
    received,
)
from shoal.envs.env_processes import Death, EnvProcesses
from shoal.envs.observations import ObsSpec
from shoal.envs.randomizing import EpisodeValues
from shoal.envs.shared_rows import Phase, SharedRows
from shoal.envs.spaces import ActionSpec, Space
from shoal.envs.vector import MOST_FAILURES_IN_A_ROW, Steps, describe, on_one_line, settings_text
from shoal.errors import EnvError, EnvStartError

T = TypeVar("T")

CLOSE_S = 3.0  # for environments to close by themselves
MESSAGE_S = 30.0  # for a message that has begun to come
LONGEST_TICK_S = 0.5
SHORTEST_TICK_S = 0.01
UNLIMITED_S = 600.0  # of a first look, for what has no deadline while something else has one
QUIET_S = 0.005  # that quick environments may take for a step, all of them together
MOST_QUIET_MISSES = 3
MOST_SELECTED = 1024  # the descriptors that `select` knows


@dataclass(frozen=True)
class Limits:
    """What an environment may take before it counts as failed."""

    step_timeout_s: float | None = None
    reset_timeout_s: float | None = None  # of a reset, and of making the environment
    memory: int | None = None  # bytes, with all that is below its process
    restart_delay_s: float = 0.0

    @classmethod
    def from_config(cls, config: AlgorithmConfig) -> Limits:
        """The limits that a configuration sets."""
        megabytes = config.env_memory_limit_mb
        return cls(
            config.env_step_timeout_s,
            config.env_reset_timeout_s,
            None if megabytes is None else megabytes * 1_000_000,
            config.env_restart_delay_s,
        )

    @property
    def first_look_s(self) -> float | None:
        """Seconds for making an environment, one reset and one step."""
        if self.step_timeout_s is None and self.reset_timeout_s is None:
            return None
        reset_s, step_s = (t if t is not None else UNLIMITED_S for t in (self.reset_timeout_s, self.step_timeout_s))
        return 2 * reset_s + step_s


@dataclass
class Slot:
    """The worker's view of one environment's process."""

    id: int = -1
    connection: socket.socket | None = None
    generation: int = 0
    pending: list[str] = field(default_factory=list)  # commands without an answer
    sent_at: float = 0.0
    missed_deadline: str = ""  # the deadline that it has passed, while it is being ended
    start_at: float | None = None  # when it is to be started again
    is_dead: bool = False
    death: Death | None = None
    step_happened: bool = False  # only the reset after it was lost
    failures_in_a_row: int = 0
    task: Any = None  # that the environment has
    task_sent: Any = None
    result: Any = None
    is_lost: bool = False  # its process was replaced while it was at the last command


class IsolatedVector:
    """Gymnasium environments, each in a process of its own; see the module."""

    def __init__(
        self,
        plan: EnvPlan,
        num_envs: int,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        spaces: tuple[Space, Space],
        *,
        seed: int,
        limits: Limits,
        max_failures: int | None = None,
    ) -> None:
        self.task: Any = None
        self.num_envs = num_envs
        self.can_replay = True
        self.episodes: list[Episode] = []
        self.incidents: list[Incident] = []
        self.rows = SharedRows(num_envs, obs_spec, action_spec)
        self._plan, self._seed, self._limits, self._max_failures = plan, seed, limits, max_failures
        self._obs_spec, self._action_spec, self._spaces = obs_spec, action_spec, spaces
        self._failures = 0
        self._tasks_then: list[Any] = [None] * num_envs
        self._slots = [Slot() for _ in range(num_envs)]
        self._ready, self._answering = os.pipe()
        os.set_blocking(self._ready, False)
        self._partial_token = b""
        self._done: list[int] = []
        self._busy: set[int] = set()
        self._steps_taken = np.zeros(num_envs, np.int64)  # answers of each row that were taken in
        self._group = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._quiet_until = 0.0
        self._quiet_misses = 0  # of groups that took longer
        self._is_starting, self._is_closed = True, False
        timeouts = [t for t in (limits.step_timeout_s, limits.reset_timeout_s) if t is not None]
        self._tick_s = min(max(min(timeouts, default=LONGEST_TICK_S) / 10, SHORTEST_TICK_S), LONGEST_TICK_S)
        self._next_check = 0.0
        self._processes = EnvProcesses.use()
        try:
            for row in range(num_envs):
                self._start(row, begins=False)
            self._finish(range(num_envs))
        except BaseException:
            self.close()
            raise
        self._is_starting = False

    def reset(self, obs: Parts) -> None:
        """See `Vector`."""
        for row in range(self.num_envs):
            self._command(row, *self._begin_command(row))
        self._finish(range(self.num_envs))
        for part, own in zip(obs, self.rows.obs, strict=True):
            part[:] = own

    def send(self, rows: Sequence[int], actions: NDArray[Any]) -> None:
        """Begin the step of some rows with their actions of `[N, A]`."""
        which = slice(None) if len(rows) == self.num_envs else rows
        self.rows.actions[which] = actions[which]
        now = monotonic()
        self._set_quiet(which, len(rows), now)
        for row in rows:
            slot = self._slots[row]
            if slot.task_sent != self.task:
                self._command(row, "task", self.task)
                slot.task_sent = self.task
            slot.pending.append("step")
            slot.sent_at = now
            self._busy.add(row)
            slot.is_lost = False
            if slot.connection is None or slot.is_dead:
                self._replace_lost(row, slot.death)
                continue
            with suppress(OSError):  # who is gone will be told of
                os.write(slot.connection.fileno(), b"s")

    def wait(self, patience_s: float = 0.0) -> list[int]:
        """Rows whose step is done, at least one; waits `patience_s` for more."""
        if self._quiet_until:
            while self._busy and (left := self._quiet_until - monotonic()) > 0:
                self._wait_once(left)
            self._quiet_misses += bool(self._busy)
            self._quiet_until = 0.0
            patience_s = 0.0
        self._take_answers()
        while not self._done:
            # Those that were told to be quiet will not wake us one by one.
            self._wait_once(QUIET_S if self.rows.quiet[list(self._busy)].any() else self._tick_s)
        until = monotonic() + patience_s
        while self._busy and patience_s and (left := until - monotonic()) > 0:
            self._wait_once(left)
        done, self._done = self._done, []
        return done

    def begin_fragment(self) -> None:
        """Take environments for quick ones until they show that they are not."""
        self._quiet_misses = 0
        if self._busy:  # the last fragment was cut short
            self._finish(list(self._busy))
        self._done.clear()

    def _set_quiet(self, rows: Sequence[int] | slice, count: int, now: float) -> None:
        """Let only the last of these rows wake us, if they are quick and nobody else is at work."""
        is_quiet = not self._busy and self._quiet_misses < MOST_QUIET_MISSES
        self.rows.quiet[rows] = is_quiet
        if is_quiet:
            with suppress(BlockingIOError):
                while True:
                    os.eventfd_read(self._group)  # what a process that died has left
            if count > 1:
                os.eventfd_write(self._group, count - 1)
            self._quiet_until = now + QUIET_S

    def step(self, actions: NDArray[Any], active: NDArray[np.bool_] | None, steps: Steps) -> None:
        """See `Vector`."""
        rows = self.rows
        chosen = np.arange(self.num_envs) if active is None else active.nonzero()[0]
        self.send(chosen.tolist(), actions)
        self._finish(chosen.tolist())
        for part, own in zip(steps.obs, rows.obs, strict=True):
            part[chosen] = own[chosen]
        steps.rewards[:], steps.terminated[:], steps.truncated[:], steps.valid[:] = 0, True, False, False
        for name in ("rewards", "terminated", "truncated", "valid"):
            getattr(steps, name)[chosen] = getattr(rows, name)[chosen]
        for row in chosen.tolist():
            if rows.truncated[row]:
                steps.finals.append((row, self.final(row)))
        steps.failed += chosen[rows.failed[chosen]].tolist()
        steps.seeded += chosen[rows.seeded[chosen]].tolist()

    def final(self, row: int) -> Parts:
        """The last observation of the episode that a row's step has truncated."""
        return tuple(part[row].copy() for part in self.rows.final)

    def replay(self, histories: Sequence[NDArray[Any] | None], obs: Parts) -> list[bool]:
        """See `Vector`."""
        for row, history in enumerate(histories):
            state = {
                "seedings": [int(self.rows.seedings[row])],
                "failures": 0,
                "task": self.task,
                "tasks": [self._tasks_then[row]],
            }
            self._slots[row].task_sent = self.task
            self._command(row, "replay", history, state)
        self._finish(range(self.num_envs))
        for part, own in zip(obs, self.rows.obs, strict=True):
            part[:] = own
        return [False if slot.is_lost else bool(slot.result) for slot in self._slots]

    def call(self, fn: Callable[[Any], T]) -> list[T]:
        """The result of `fn(env)` for every environment, run in its process."""
        function = packed(fn, fn)
        for row in range(self.num_envs):
            self._command(row, "call", function)
        self._finish(range(self.num_envs))
        if any(slot.is_lost for slot in self._slots):
            raise EnvError(f"a function that was called on every environment failed: {describe(self.incidents[-1])}")
        return [slot.result for slot in self._slots]

    def get_state(self) -> dict[str, Any]:
        """See `Vector`."""
        return {
            "seedings": [int(n) for n in self.rows.seedings],
            "failures": self._failures,
            "task": self.task,
            "tasks": [slot.task for slot in self._slots],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Vector`."""
        self.rows.seedings[:] = state["seedings"]
        self._failures = int(state["failures"])
        self.task, self._tasks_then = state["task"], list(state["tasks"])

    def close(self) -> None:
        """See `Vector`."""
        if self._is_closed:
            return
        self._is_closed = True
        alive = {slot.id: slot for slot in self._slots if slot.connection is not None and not slot.is_dead}
        for slot in alive.values():
            assert slot.connection is not None
            slot.connection.settimeout(0)
            with suppress(OSError):
                slot.connection.send(_message("close", ()))
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
                    _readable([self._processes.control.fileno()], min(left, LONGEST_TICK_S))
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.close()
        self._processes.release()
        for descriptor in (self._ready, self._answering, self._group, self.rows.descriptor):
            os.close(descriptor)
        if self._plan.scratch is not None:
            rmtree(self._plan.scratch, ignore_errors=True)

    def _finish(self, rows: Iterable[int]) -> None:
        """Wait until all of these rows have answered."""
        missing = set(rows)
        while missing:
            missing.difference_update(self.wait())

    def _start(self, row: int, begins: bool) -> None:
        """Start the process of a row, and let it begin an episode where it takes the place of another."""
        slot = self._slots[row]
        if self._processes.is_broken:
            self._processes.release()
            self._processes = EnvProcesses.use()
        slot.generation += 1
        slot.missed_deadline, slot.start_at, slot.is_dead, slot.death = "", None, False, None
        self.rows.phase[row] = Phase.IDLE
        self._steps_taken[row] = self.rows.answered[row]
        slot.id, slot.connection = self._processes.start(
            self._answering, self.rows.descriptor, self._group, self._limits.memory
        )
        slot.connection.settimeout(MESSAGE_S)
        start = Start(
            self._plan,
            self._obs_spec,
            self._action_spec,
            *self._spaces,
            self._seed,
            self.num_envs,
            row,
            self._limits.restart_delay_s,
        )
        slot.pending = []
        self._command(row, "hello", list(sys.path), row, slot.generation)
        self._command(row, "start", start)
        if begins:
            slot.task_sent = self.task
            self._command(row, *self._begin_command(row))

    def _begin_command(self, row: int) -> tuple[Any, ...]:
        slot = self._slots[row]
        slot.task_sent = self.task
        return "begin", int(self.rows.seedings[row]), slot.failures_in_a_row, self.task, self._tasks_then[row]

    def _command(self, row: int, name: str, *arguments: Any) -> None:
        slot = self._slots[row]
        if name not in ("hello", "start", "begin"):
            slot.is_lost = False
        slot.pending.append(name)
        slot.sent_at = monotonic()
        self._busy.add(row)
        if slot.connection is None or slot.is_dead:
            self._replace_lost(row, slot.death)
            return
        with suppress(OSError):
            slot.connection.sendall(_message(name, arguments, *([_owner(self._plan)] if name == "start" else [])))

    def _wait_once(self, timeout_s: float) -> None:
        """Wait for answers, deaths and deadlines, whatever comes first, and deal with it."""
        now = monotonic()
        starts = [slot.start_at for slot in self._slots if slot.start_at is not None]
        until = min([now + timeout_s, *starts])
        control = self._processes.control.fileno()
        readable = _readable([self._ready, control], max(0.0, until - now))
        if self._ready in readable:
            self._take_tokens()
        self._take_answers()
        now = monotonic()
        if control in readable or starts or now >= self._next_check:
            self._next_check = now + self._tick_s
            self._check_processes(now)

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
            if not is_step and generation == slot.generation and not slot.missed_deadline:
                self._answered(row, slot)

    def _take_answers(self) -> None:
        """Take in the steps that are done."""
        for row in np.flatnonzero(self.rows.answered != self._steps_taken).tolist():
            slot = self._slots[row]
            if slot.pending[:1] == ["step"] and not slot.missed_deadline:
                self._steps_taken[row] += 1
                self._answered(row, slot)

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
            self._busy.discard(row)
            self._done.append(row)

    def _take_report(self, row: int, slot: Slot, command: str, report: Report) -> None:
        if report.episodes:
            slot.failures_in_a_row = 0
            self.episodes += report.episodes
        for incident in report.incidents:
            self._add_incident(incident)
        if report.error is not None:
            if command == "start" and not self._is_starting:
                self._replace_lost(row, None, str(report.error))
                return
            raise report.error
        if command in ("begin", "step"):
            slot.task = report.result
        elif command == "replay":
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
                self._take_answers()
                if slot.pending:
                    self._replace_lost(row, death)
            elif slot.pending and not slot.missed_deadline:
                slot.missed_deadline = self._passed_deadline(row, slot, now)
                if slot.missed_deadline:
                    self._processes.end(slot.id, stack=True)

    def _passed_deadline(self, row: int, slot: Slot, now: float) -> str:
        """The deadline that a row has passed, in words; empty if none."""
        phase = Phase(int(self.rows.phase[row]))
        began = float(self.rows.began[row])
        if phase is Phase.IDLE:  # it has not even seen its command
            if slot.pending[0] == "hello":  # nor has it been forked, perhaps
                return ""
            phase = Phase.STEP if slot.pending[0] == "step" else Phase.RESET
            began = slot.sent_at
        took = now - began
        steps, resets = self._limits.step_timeout_s, self._limits.reset_timeout_s
        if phase is Phase.STEP and steps is not None and took > steps:
            return f"its step took longer than env_step_timeout_s, which is {steps:g}"
        if phase in (Phase.RESET, Phase.MAKE) and resets is not None and took > resets:
            what = "reset" if phase is Phase.RESET else "constructor"
            return f"its {what} took longer than env_reset_timeout_s, which is {resets:g}"
        return ""

    def _replace_lost(self, row: int, death: Death | None, error: str = "") -> None:
        """Write down the loss of a process, and have it started again; or give up when it is one too many."""
        slot, rows = self._slots[row], self.rows
        at_step = slot.pending[:1] == ["step"] or slot.pending[:2] == ["task", "step"]
        ended = at_step and bool(rows.ended[row]) and rows.phase[row] != Phase.IDLE
        slot.step_happened = ended
        in_step = at_step and not ended
        kind, cause = _cause(death, slot.missed_deadline, self._limits.memory, error)
        if self._is_starting:
            tail = (
                f"; the last that it printed: {_last_line(death.output)}" if death is not None and death.output else ""
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
        self._failures += 1
        limit = self._max_failures
        if limit is not None and self._failures > limit:
            count = f"That was failure {self._failures} and max_env_failures is {limit}."
            raise EnvError(f"{describe(incident)}\n{count}")

    def _incident(self, row: int, kind: str, cause: str, death: Death | None, in_step: bool) -> Incident:
        rows, index = self.rows, self._plan.first_index + row
        seeding, resets = int(rows.seedings[row]), int(rows.resets[row])
        randomizer = self._plan.randomizer
        drawn = EpisodeValues() if randomizer is None else randomizer.draw(index, max(seeding, 1), resets)
        task = self._slots[row].task
        action = self._action_spec.decode(rows.actions[row : row + 1])[0] if in_step else None
        return Incident(
            env_index=index,
            worker_index=self._plan.worker_index,
            seed=reset_seed(self._seed, index, seeding),
            steps_since_seed=int(rows.since_seed[row]) + in_step,
            step=int(rows.lengths[row]) + 1 if in_step else 0,
            action=on_one_line(action) if in_step else "none, in reset",
            cause=cause,
            traceback="",
            settings=settings_text(task, drawn),
            kind=kind,
            exit_code=None if death is None else death.status,
            output="" if death is None else death.output,
            time=time(),
            seeding=seeding,
            task=task,
            options=drawn.options,
            env_config=drawn.env_config,
        )


def first_look(plan: EnvPlan, drawn: EpisodeValues, limits: Limits) -> FirstLook:
    """A first look at an environment, in a process that ends with it."""
    processes = EnvProcesses.use()
    ready, answering = os.pipe()
    id, connection = processes.start(answering, answering, answering, limits.memory)
    try:
        for name, arguments in (("hello", (list(sys.path), 0, 0)), ("look", (plan, drawn))):
            connection.sendall(_message(name, arguments, _owner(plan)))
        report = Report()
        for timeout_s in (None, limits.first_look_s):  # the first answer waits until the fork server is up
            connection.settimeout(timeout_s)
            length = LENGTH.unpack(received(connection, LENGTH.size))[0]
            report = pickle.loads(received(connection, length))
            if report.error is not None:
                raise report.error
        found: FirstLook = report.result
        return found
    except (EOFError, TimeoutError, ConnectionError) as error:
        late = ""
        if isinstance(error, TimeoutError):
            late = "its first steps took longer than env_reset_timeout_s and env_step_timeout_s allow"
            processes.end(id, stack=True)
        death = _awaited_death(processes, id)
        _, cause = _cause(death, late, limits.memory, "")
        printed = (
            f"; the last that it printed: {_last_line(death.output)}" if death is not None and death.output else ""
        )
        raise EnvStartError(f"env {plan.maker.name}: its first steps failed: {cause}{printed}") from None
    finally:
        connection.close()
        processes.end(id)
        _awaited_death(processes, id)
        processes.release()
        os.close(ready)
        os.close(answering)


def packed(value: Any, *owners: Any) -> bytes:
    """Anything as bytes that another Python can read, also what the modules of `owners` define.

    A function or class goes by its name where the other one can import that, else whole.
    """
    import cloudpickle

    names = {getattr(owner, "__module__", None) for owner in owners}
    strangers = [module for name in names if (module := sys.modules.get(str(name))) and not _is_importable(module)]
    for module in strangers:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value))
    finally:
        for module in strangers:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    """Whether another Python with the same path finds the module by its name."""
    top, _, inner = module.__name__.partition(".")
    if top == "__main__" or top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top, sys.path)
    file = getattr(module, "__file__", None)
    return spec is not None and (bool(inner) or file is None or spec.origin == file)


def _message(name: str, arguments: tuple[Any, ...], *owners: Any) -> bytes:
    data = packed((name, arguments), *owners) if owners else pickle.dumps((name, arguments))
    return b"c" + LENGTH.pack(len(data)) + data


def _owner(plan: EnvPlan) -> Any:
    """What makes a plan's environments, whose module another process may not find."""
    target = getattr(plan.maker.create, "target", plan.maker.create)
    return getattr(target, "func", target)


def _readable(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Which of these can be read, within some seconds."""
    if max(descriptors) < MOST_SELECTED:
        return set(select.select(descriptors, [], [], timeout_s)[0])
    polled = select.poll()
    for descriptor in descriptors:
        polled.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in polled.poll(ceil(timeout_s * 1000))}


def _awaited_death(processes: EnvProcesses, id: int) -> Death | None:
    until = monotonic() + CLOSE_S
    while (left := until - monotonic()) > 0:
        death = processes.death(id)
        if death is not None or processes.is_broken:
            return death
        _readable([processes.control.fileno()], left)
    return None


def _cause(death: Death | None, late: str, memory_limit: int | None, error: str) -> tuple[str, str]:
    """What kind of failure it was, and in one line why."""
    if error:
        return "error", error.splitlines()[0]
    if late:
        return "hang", f"TimeoutError: {late}"
    if death is None:
        return "exit", "ProcessError: its process was gone before it got its command"
    if death.memory is not None and memory_limit is not None:
        taken, limit = death.memory / 1e6, memory_limit / 1e6
        return "memory", f"MemoryError: it took {taken:.0f} MB, and env_memory_limit_mb is {limit:.0f}"
    if death.status == OUT_OF_MEMORY:
        return "memory", f"MemoryError: {_last_line(death.output)}"
    if death.status < 0:
        with suppress(ValueError):
            return "signal", f"ProcessError: its process was killed by {signal.Signals(-death.status).name}"
        return "signal", f"ProcessError: its process was killed by signal {-death.status}"
    return "exit", f"ProcessError: its process ended by itself with exit code {death.status}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
