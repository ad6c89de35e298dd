"""What runs in an environment's own process: a vector of one, told what to do through a socket.

The guard, the seeds, tasks and drawn values are those of `PythonVector`: a simulator that raises or gives nonsense is
rebuilt here, in its process, and the worker hears of it with the answer. Only what this process cannot survive (a hang,
a signal, too much memory) is the worker's business.

A command is one byte: `s` is a step, whose action lies in the shared row; `c` is followed by the length of a pickled
`(name, arguments)`. The answer to a step is one more in `answered`, and to wake the worker, a token on the pipe that
all environments share. To be woken for every step of quick environments takes longer than the steps: where `quiet` is
set, all but the last of a group take a number from a semaphore instead. The answer to a command of the second kind is
a token. After it, and after a step where `has_report` is set, a pickled `Report` follows in the socket, with its
length before it.

Even so, processes that take turns on few cores spend more time waking than stepping. The policy does not change within
a fragment, so a process that has it (`Actor`) acts by itself after a step that is plain: sound, and nothing is to be
told of it that has no place in the shared row. A stretch of such steps is one answer, also over the ends of episodes
(`through_ends`). It ends with a step that is not plain (it failed, it truncated an episode, its episode has metrics),
after as many steps as the worker has allowed, or after `LONGEST_STRETCH_S`. Each of its steps has its own deadline, and
is in the shared row before the next one begins, so none is lost with the process.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from time import monotonic, sleep
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from shoal.data.batch import Array, Episode, Incident, Parts
from shoal.data.state import State
from shoal.envs.checking import check_first_steps
from shoal.envs.closing import close_quietly
from shoal.envs.context import EnvContext
from shoal.envs.copies import end_copy, here
from shoal.envs.env_errors import error_text
from shoal.envs.making import AnyEnv, EnvMaker, strip
from shoal.envs.observations import ObsSpec
from shoal.envs.pace import Pace
from shoal.envs.randomizing import EpisodeValues, Randomizer
from shoal.envs.shared_rows import ActorShape, Phase, SharedRows, memory_barrier
from shoal.envs.spaces import ActionSpec, Space
from shoal.envs.vector import LARGEST_REWARD, EpisodeObserver, PythonVector, Steps
from shoal.envs.video import make_in_window
from shoal.errors import ConfigError, EnvStartError, ShoalError
from shoal.machine.slots import RankSlot

LENGTH = struct.Struct("<Q")
TOKEN = struct.Struct("<III")  # row, generation of its process, whether it is for a step
LONGEST_DELAY = 64  # times `restart_delay_s`

LONGEST_STRETCH_S = 0.1  # before its last step

OUT_OF_MEMORY = 77  # the exit code of a process whose simulator was refused memory


class Actor(Protocol):
    """A policy that acts for the environment of one row, as the worker would."""

    shape: ActorShape

    def sit_at(self, row: int) -> None:
        """Act for the environment of this row from now on."""

    def take_weights(self, weights: Array) -> None:
        """Act by these numbers `[W]` from now on."""

    def act(self, obs: Parts, noise: Array | None) -> tuple[NDArray[Any], Array]:
        """The action `[A]` and the outputs `[K]` for an observation, with the noise `[M]`, or without chance.

        The observation is a row of each part, `[1, ...]`.
        """


@dataclass(frozen=True)
class EnvPlan:
    """How a worker's environments are made, wherever that happens."""

    maker: EnvMaker
    env_config: Mapping[str, Any]
    worker_index: int = 0
    num_workers: int = 0
    first_index: int = 0  # of the worker's first environment
    index_offset: int = 0  # what sets env_index apart
    horizon: int | None = None
    vector_offset: int = 0  # what is added to a row for vector_index
    shown: int | None = None  # the env_index of the one that has a window
    randomizer: Randomizer | None = None
    scratch: str | None = None  # the folder for the environments' own folders
    memory: str | None = None  # the same in shared memory, for ranks
    observer: Callable[[], EpisodeObserver] | None = None  # is made beside each environment, and told of its episodes
    env_ranks: int = 0
    slots: tuple[RankSlot, ...] = ()  # those of all rows, one after another
    pace: Pace | None = None

    def context(self, row: int, drawn: Mapping[str, Any] | None = None) -> EnvContext:
        """What the environment of a row is told."""
        at = row * self.env_ranks
        return EnvContext(
            {**self.env_config, **(drawn or {})},
            worker_index=self.worker_index,
            vector_index=self.vector_offset + row,
            env_index=self.index_offset + self.first_index + row,
            num_workers=self.num_workers,
            scratch=self.scratch,
            memory=self.memory,
            env_ranks=self.env_ranks,
            slots=self.slots[at : at + self.env_ranks],
        )

    def make(self, row: int, drawn: Mapping[str, Any] | None = None) -> AnyEnv:
        """The environment of a row."""
        return self.make_with(self.context(row, drawn))

    def make_with(self, ctx: EnvContext) -> AnyEnv:
        """The environment that is told this."""
        return make_in_window(self.maker, ctx) if ctx.env_index == self.shown else self.maker.make(ctx)


@dataclass(frozen=True)
class FirstLook:
    """What a first look at an environment found."""

    observation_space: Space
    action_space: Space
    num_envs: int | None  # of a native vector environment
    legacy: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class EnvStart:
    """What a process needs to be the environment of a row."""

    plan: EnvPlan
    obs_spec: ObsSpec
    action_spec: ActionSpec
    observation_space: Space
    action_space: Space
    seed: int
    num_envs: int
    row: int
    restart_delay_s: float
    actor: Actor | None = None  # that acts in stretches; None: every step is asked for


@dataclass
class Report:
    """What does not fit into a row."""

    episodes: list[Episode] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    result: Any = None
    error: BaseException | None = None


class OneEnvVector(PythonVector):
    """The one environment of this process, which says what it is at before each call of the user's code."""

    def __init__(self, start: EnvStart, rows: SharedRows) -> None:
        self._plan, self._row, self._rows = start.plan, start.row, rows
        self._spaces = start.observation_space, start.action_space
        self._delay_s = start.restart_delay_s
        self._context: EnvContext | None = None  # of the environment that is there
        leaf = start.obs_spec.leaves[0]
        is_plain = len(start.obs_spec.leaves) == 1 and leaf.kind == "vector" and leaf.first is None and not leaf.path
        observer = None if start.plan.observer is None else start.plan.observer()
        if observer is not None and observer.wants_every_step:
            is_plain = False
        self._plain_shape = leaf.shape if is_plain else None
        self._room = rows.obs[0][start.row]
        super().__init__(
            self._made,
            1,
            start.obs_spec,
            start.action_spec,
            seed=start.seed,
            first_index=start.plan.first_index + start.row,
            worker_index=start.plan.worker_index,
            max_failures=None,
            randomizer=start.plan.randomizer,
            observer=observer,
            keep_scratch=lambda _: "" if self._context is None else self._context.keep_scratch(),
        )

    def enter(self, phase: Phase) -> None:
        """Say what is done now."""
        self._rows.began[self._row] = monotonic()
        memory_barrier()
        self._rows.phase[self._row] = phase

    def mirror(self) -> None:
        """Write down where the episode stands, for the incident if this process should be lost."""
        rows, row = self._rows, self._row
        rows.seedings[row], rows.since_seed[row] = self._seedings[0], self._since_seed[0]
        rows.seeded_by[row] = self._seedings[0]
        rows.lengths[row], rows.resets[row] = self._lengths[0], self._resets[0]

    def begin(self, seedings: int, failures_in_a_row: int, task: Any, tasks_then: Any, obs: Parts) -> None:
        """Begin with the seed after the `seedings`-th."""
        self._seedings[0], self._failures_in_a_row[0] = seedings, failures_in_a_row
        self.task, self._tasks_then[0] = task, tasks_then
        self._rows.ended[self._row] = False
        self._begin(0, obs, seeded=True)

    def take_step(self, actions: NDArray[Any], steps: Steps) -> bool:
        """As `step`; whether it was plain. What goes on, as almost every step does, takes a short way."""
        action = self._action_spec.decode(actions)[0]
        columns, pid = self.columns, here[0]
        try:
            answer = self._steps[0](action)
            columns[0][0], columns[1][0], columns[2][0], columns[3][0], columns[4][0] = answer
        except BaseException as error:  # a solver that calls sys.exit() ends itself, not its process
            end_copy(pid, "step()")
            self._fail(0, error, action)
            steps.failed.append(0)
        else:
            end_copy(pid, "step()")
            if self._goes_on_plainly(steps):
                return True
        task = self._tasks[0]
        self.settle(steps, None, [action])
        if steps.failed or steps.finals or self.incidents or self._tasks[0] is not task:
            return False
        return not any(episode.metrics for episode in self.episodes)

    def _goes_on_plainly(self, steps: Steps) -> bool:
        """Write a step that is sound beyond doubt and does not end its episode; False if it must be looked at."""
        obs, reward, terminated, truncated = (column[0] for column in self.columns[:4])
        if self._plain_shape is None or type(obs) is not np.ndarray or obs.shape != self._plain_shape:
            return False
        if obs.dtype.kind != "f" or not isinstance(reward, float) or terminated is not False or truncated is not False:
            return False
        if not abs(reward) <= LARGEST_REWARD or self._lengths[0] + 1 >= self._limits[0]:
            return False
        room = self._room
        if obs.dtype.itemsize > room.itemsize:
            with np.errstate(over="ignore"):
                room[:] = obs.reshape(-1)
        else:
            room[:] = obs.reshape(-1)
        if not isfinite(np.add.reduce(room)):
            return False
        steps.rewards[0], steps.terminated[0], steps.truncated[0] = reward, False, False
        self._lengths[0] += 1
        self._since_seed[0] += 1
        self._rewards[0] += steps.rewards[0]
        return True

    def given_task(self) -> Any:
        """The task that the environment has."""
        return self._tasks[0]

    def _made(self, row: int, drawn: Mapping[str, Any] | None = None) -> tuple[gym.Env[Any, Any], int | None]:
        self._await_turn()
        self.enter(Phase.MAKE)
        if self._context is not None:
            self._context.release()
        self._context = self._plan.context(self._row + row, drawn)
        env = self._plan.make_with(self._context)
        assert not isinstance(env, VectorEnv)
        if drawn and (env.observation_space, env.action_space) != self._spaces:
            raise ConfigError(f"config.randomize.env_config: with {dict(drawn)} the environment has other spaces")
        bare, limit = strip(env)
        limits = [n for n in (limit, self._plan.horizon) if n is not None]
        return bare, min(limits, default=None)

    def _reset(self, row: int, seeded: bool, task: Any) -> Any:
        if seeded and self._rows.ended[self._row]:
            # Should it be lost here, then for what it has done since the seed before, and that can be replayed.
            self._rows.seedings[self._row] = self._seedings[0]
        elif seeded:
            self.mirror()
        self._await_turn()
        self.enter(Phase.RESET)
        first = super()._reset(row, seeded, task)
        self.enter(Phase.STEP)  # where an episode is followed again, its steps come next
        return first

    def _await_turn(self) -> None:
        if self._plan.pace is not None:
            self.enter(Phase.REST)  # which has no deadline
            self._plan.pace.wait()

    def _show_step(self, row: int, action: Any, obs: Any, reward: float, info: Any) -> None:
        super()._show_step(row, action, obs, reward, info)
        self.enter(Phase.STEP)  # each step of an episode that is followed again has its own deadline

    def _end(self, row: int, steps: Steps) -> None:
        # The reset may never come back: what the step gave is in place before it begins.
        rows, own = self._rows, self._row
        for final, part in zip(rows.final, steps.obs, strict=True):
            final[own] = part[row]
        rows.episode_reward[own], rows.episode_length[own] = self._rewards[row], self._lengths[row]
        rows.since_seed[own], rows.lengths[own] = self._since_seed[row], 0
        rows.ended[own] = True
        super()._end(row, steps)

    def _fail(self, row: int, error: BaseException, action: Any) -> None:
        if isinstance(error, MemoryError):
            traceback.print_exception(error)
            sys.stderr.flush()
            os._exit(OUT_OF_MEMORY)
        super()._fail(row, error, action)

    def _rebuild(self, row: int) -> None:
        if self._delay_s and self._failures_in_a_row[row]:
            self.enter(Phase.REST)
            sleep(self._delay_s * min(2 ** (self._failures_in_a_row[row] - 1), LONGEST_DELAY))
        super()._rebuild(row)


class EnvProcess:
    """Carries out what the worker asks for."""

    def __init__(self, connection: socket.socket, ready: int, memory: int, group: int) -> None:
        self._connection, self._ready, self._memory, self._group = connection, ready, memory, group
        self._rows: SharedRows | None = None
        self._vector: OneEnvVector | None = None
        self._looked_at: tuple[Any, EnvContext] | None = None
        self._row = self._generation = 0
        self._actor: Actor | None = None
        self._version = 0  # of the weights that the actor has
        self._pid = os.getpid()

    def run(self) -> int:
        """Serve until the worker hangs up; the exit code."""
        connection = self._connection
        while True:
            command = connection.recv(1)
            if command == b"s":
                self._step()
            elif not command:
                return 0
            else:
                length = LENGTH.unpack(received(connection, LENGTH.size))[0]
                report = Report()
                try:
                    name, arguments = pickle.loads(received(connection, length))
                    if name == "close":
                        self._close()
                        return 0
                    report.result = getattr(self, f"on_{name}")(*arguments)
                except BaseException as error:
                    report.error = sendable(error)
                self._answer(report)

    def _close(self) -> None:
        if self._vector is not None:
            self._vector.close()
        if self._looked_at is not None:
            env, ctx = self._looked_at
            close_quietly(env)
            ctx.release()

    def on_hello(self, path: list[str], row: int, generation: int) -> None:
        """Import from where the worker imports from, and sign answers with these numbers."""
        sys.path[:] = path
        self._row, self._generation = row, generation

    def on_look(self, plan: EnvPlan, drawn: EpisodeValues) -> FirstLook:
        """Look at the first steps of an environment."""
        ctx = plan.context(0, drawn.env_config)
        report = check_first_steps(lambda: plan.make_with(ctx), drawn.options)
        env = report.env
        self._looked_at = env, ctx  # closed when the answer is there: closing may never end
        if isinstance(env, VectorEnv):
            spaces = env.single_observation_space, env.single_action_space
            return FirstLook(*spaces, env.num_envs, False, report.warnings)
        return FirstLook(env.observation_space, env.action_space, None, report.legacy, report.warnings)

    def on_start(self, start: EnvStart) -> None:
        """Make the environment."""
        rows = SharedRows(start.num_envs, start.obs_spec, start.action_spec, self._memory, shape_of(start.actor))
        self._rows, self._actor, self._version = rows, start.actor, 0
        if start.actor is not None:
            start.actor.sit_at(self._row)
        own = slice(self._row, self._row + 1)
        self._obs = tuple(part[own] for part in rows.obs)
        self._arrays = rows.rewards[own], rows.terminated[own], rows.truncated[own], rows.valid[own]
        self._actions = rows.actions[own]
        self._steps = Steps(self._obs, *self._arrays)
        self._vector = OneEnvVector(start, rows)

    def on_begin(self, seedings: int, failures_in_a_row: int, task: Any, tasks_then: Any) -> Any:
        """Begin an episode; the task that the environment has."""
        self._own().begin(seedings, failures_in_a_row, task, tasks_then, self._obs)
        self._own().mirror()
        return self._own().given_task()

    def on_task(self, task: Any) -> None:
        """Take a task for the next reset."""
        self._own().task = task

    def on_env_state(self) -> State | None:
        """Where the environment stands, if it can tell that itself."""
        self._own().enter(Phase.OTHER)
        return self._own().env_states()[0]

    def on_bring_back(
        self, env_state: State | None, history: Any, state: dict[str, Any], limit_s: float | None
    ) -> tuple[bool, Any]:
        """Go on with an unfinished episode; whether that came out, and the task."""
        self._own().enter(Phase.OTHER)
        self._own().set_state(state)
        self._own().replay_limit_s = limit_s
        same = self._own().bring_back([env_state], [history], self._obs)[0]
        self._own().mirror()
        return same, self._own().given_task()

    def on_call(self, fn: bytes) -> Any:
        """The result of a function of the user's on the environment."""
        self._own().enter(Phase.OTHER)
        return pickle.loads(fn)(self._own().envs[0])

    def _step(self) -> None:
        rows, row, vector = self._rows, self._row, self._vector
        assert rows is not None
        assert vector is not None
        until = monotonic() + LONGEST_STRETCH_S
        allowed = int(rows.stretch[row])
        report = None
        try:
            while self._may_go_on(rows, vector) and rows.taken[row] + 1 < allowed and monotonic() < until:
                self._choose_next(rows, vector)
        except BaseException as error:
            report = Report(error=sendable(error))
        if vector.episodes or vector.incidents or report is not None:
            self._answer(report or Report(result=vector.given_task()), is_step=True)
            return
        vector.mirror()
        rows.has_report[row] = False
        rows.phase[row] = Phase.IDLE
        self._report_step(rows)

    def _may_go_on(self, rows: SharedRows, vector: OneEnvVector) -> bool:
        """Take the step whose action lies in the row; whether another may follow in its stretch."""
        row = self._row
        rows.ended[row] = False
        rows.began[row] = monotonic()
        memory_barrier()
        rows.phase[row] = Phase.STEP
        rows.valid[row] = True
        steps = self._steps
        if steps.failed or steps.seeded or steps.finals:
            steps = self._steps = Steps(self._obs, *self._arrays)
        is_plain = vector.take_step(self._actions, steps)
        rows.failed[row], rows.seeded[row] = bool(steps.failed), bool(steps.seeded)
        return is_plain and (bool(rows.through_ends[0]) or not vector.episodes)

    def _choose_next(self, rows: SharedRows, vector: OneEnvVector) -> None:
        """Put away a plain step, and choose the next action."""
        row, actor = self._row, self._actor
        assert actor is not None
        vector.mirror()
        if self._version != rows.version[0]:
            self._version = int(rows.version[0])
            actor.take_weights(rows.weights)
        taken = int(rows.taken[row])
        for passed, part in zip(rows.passed, self._obs, strict=True):
            passed[row, taken] = part[0]
        rows.passed_rewards[row, taken] = rows.rewards[row]
        rows.passed_terminated[row, taken], rows.passed_seeded[row, taken] = rows.terminated[row], rows.seeded[row]
        rows.passed_lengths[row, taken] = 0
        if vector.episodes:
            episode = vector.episodes.pop()
            rows.passed_returns[row, taken], rows.passed_lengths[row, taken] = episode.reward, episode.length
        noise = rows.noise[row, taken + 1] if rows.explores[0] else None
        action, outputs = actor.act(self._obs, noise)
        rows.chosen[row, taken + 1] = action
        rows.outputs[row, taken + 1] = outputs
        rows.actions[row] = action
        rows.ended[row] = False
        rows.taken[row] = taken + 1  # the last: from here on the step is a thing of the past

    def _report_step(self, rows: SharedRows) -> None:
        memory_barrier()
        rows.answered[self._row] += 1
        if rows.quiet[self._row]:
            try:
                os.eventfd_read(self._group)
                return
            except BlockingIOError:  # it is the last of its group
                pass
        os.write(self._ready, TOKEN.pack(self._row, self._generation, 1))

    def _answer(self, report: Report, is_step: bool = False) -> None:
        """Say that the command is done, and what there is to tell."""
        end_copy(self._pid, "a call")
        if self._vector is not None:
            self._vector.mirror()
            report.episodes, report.incidents = self._vector.episodes[:], self._vector.incidents[:]
            self._vector.episodes.clear()
            self._vector.incidents.clear()
        try:
            data = pickle.dumps(report)
        except Exception as error:  # the result of a user's function may be fit for no journey
            report.result, report.error = None, ConfigError(f"the result cannot be sent: {error_text(error)}")
            data = pickle.dumps(report)
        if self._rows is not None:
            self._rows.has_report[self._row] = True
            self._rows.phase[self._row] = Phase.IDLE
        # The token first: a long message waits in the socket for its reader, who waits for the token.
        if is_step and self._rows is not None:
            self._report_step(self._rows)
        else:
            os.write(self._ready, TOKEN.pack(self._row, self._generation, 0))
        self._connection.sendall(LENGTH.pack(len(data)) + data)

    def _own(self) -> OneEnvVector:
        assert self._vector is not None
        return self._vector


def shape_of(actor: Actor | None) -> ActorShape | None:
    """What rows need to have room for where there is an actor."""
    return None if actor is None else actor.shape


def received(connection: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError if the other side hangs up before."""
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise EOFError("the other process is gone")
        data += piece
    return bytes(data)


def sendable(error: BaseException) -> BaseException:
    """The error as another process can have it: our own as they are, others in their own words."""
    if isinstance(error, ShoalError):
        return type(error)(error.problems if isinstance(error, ConfigError) else str(error))
    return EnvStartError(error_text(error))


def serve(connection: int, ready: int, memory: int, group: int) -> int:
    """Be the process of an environment; the exit code."""
    return EnvProcess(socket.socket(fileno=connection), ready, memory, group).run()
