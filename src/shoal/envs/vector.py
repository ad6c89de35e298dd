"""N environments stepped as one, written straight into arrays, each guarded at the boundary.

Whatever stands behind it (Python environments in this process or in processes of their own, a native vector
environment), a vector has same-step autoreset: the row that `step` writes is where the next action is taken, and the
true last observation of a truncated episode is handed over apart.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from time import time
from typing import Any, NamedTuple, Protocol, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Episode, Incident, Parts
from shoal.data.number_text import counted
from shoal.data.state import State
from shoal.data.streams import reset_seed
from shoal.envs.closing import close_all_quietly, close_quietly
from shoal.envs.copies import comes_back_once, end_copy, here
from shoal.envs.env_errors import error_text, named_text, notice_once, pass_on_interrupts
from shoal.envs.env_states import offers_state, restore_state, state_of
from shoal.envs.observations import NUMBERS, ObsSpec
from shoal.envs.pace import Pace
from shoal.envs.randomizing import EpisodeValues, Randomizer
from shoal.envs.replay_clock import ReplayClock
from shoal.envs.spaces import ActionSpec
from shoal.envs.tasks import set_task
from shoal.errors import CallbackError, EnvError, ProgramLost

T = TypeVar("T")

MOST_FAILURES_IN_A_ROW = 10
STEPS_BETWEEN_SEEDS = 100
STEPS_BETWEEN_ATARI_SEEDS = 5000  # a seed makes the emulator load its game anew, which takes as long as 500 steps
LARGEST_REWARD = 1e15  # beyond it, a square of a sum of rewards has no place in single precision
LARGEST_METRIC = 1e38  # Python's integers may be larger than any float


@dataclass
class Steps:
    """What one step of every environment gives, in rows `[N]` that the caller owns."""

    obs: Parts  # where the next action is taken
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    finals: list[tuple[int, Parts]] = field(default_factory=list)  # (row, last observation) of truncated episodes
    failed: list[int] = field(default_factory=list)  # rows whose step did not happen
    seeded: list[int] = field(default_factory=list)  # rows that began an episode with a seed


class Vector(Protocol):
    """What a sampler needs of N environments."""

    num_envs: int
    task: Any  # given to each environment before its next reset; None: none is
    can_replay: bool  # whether actions lead an environment back to where it was
    replay_limit_s: float | None  # how long `bring_back` may follow actions; None: as long as it takes
    episodes: list[Episode]  # finished since they were last taken
    incidents: list[Incident]

    def reset(self, obs: Parts) -> None:
        """Begin a new episode everywhere and write the first observations."""

    def step(self, actions: NDArray[Any], active: NDArray[np.bool_] | None, steps: Steps) -> None:
        """Take one step everywhere (or where `active`) and write what came of it into `steps`."""

    def env_states(self) -> list[State | None]:
        """Where each environment stands in its episode, as far as it can tell that itself; None: by its actions."""

    def bring_back(
        self, states: Sequence[State | None], histories: Sequence[NDArray[Any] | None], obs: Parts
    ) -> list[bool]:
        """Bring each environment back to where its own state or its actions since its seed lead.

        Observations are written, but for those that have their state: these were seen before. False where an episode
        begins anew.
        """

    def get_state(self) -> dict[str, Any]:
        """Counters of episodes and failures, as JSON values."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over the counters."""

    def call(self, fn: Callable[[Any], T]) -> list[T]:
        """The result of `fn(env)` for every environment, run where it is."""

    def close(self) -> None:
        """Close every environment; never raises."""


class Counters(NamedTuple):
    """What a vector counts of each environment's episode, each `[N]`."""

    lengths: NDArray[np.int64]
    since_seed: NDArray[np.int64]
    rewards: NDArray[np.float64]
    limits: NDArray[np.int64]  # of the lengths

    def part(self, rows: slice) -> Counters:
        """Those of some environments, in the same memory."""
        return Counters(self.lengths[rows], self.since_seed[rows], self.rewards[rows], self.limits[rows])


class EpisodeObserver(Protocol):
    """Is told of a vector's episodes as they happen, each by the `env_index` of its environment.

    What it raises as a CallbackError ends the run. Episodes that are replayed begin and step again, and do not end.
    """

    wants_every_step: bool  # False: only the last one of each episode

    def begin(self, env_index: int, env: Any, obs: Any, task: Any, drawn: EpisodeValues) -> None:
        """The environment was reset, to this task and with what was drawn for the episode."""

    def step(
        self, env_index: int, action: Any, obs: Any, reward: float, info: Any, length: int, total_reward: float
    ) -> None:
        """The environment took a step, in its own terms; `length` and `total_reward` are the episode's so far."""

    def end(self, env_index: int) -> dict[str, float]:
        """The episode has ended, and the environment is not reset yet; returns metrics for the episode's results."""


class PythonVector:
    """Gymnasium environments in this process, one after another.

    An environment gets a seed at its first reset, and again at the first reset after every 100 steps: often enough that
    a resumed run can follow it from there by its actions, rarely enough to cost nothing (making a generator takes as
    long as some steps). For Atari games, whose seeds cost far more, it is every 5000 steps.

    `make(row)` gives an environment with gymnasium's checking and ordering wrappers taken off, and its time limit;
    `make(row, env_config)` one with other entries there, where a randomizer draws them. A failing environment (it
    raises, or gives what no network may see) is rebuilt alone; `max_failures` ends the run.

    `task` is given to each environment before its next reset (None: none is), and a reset to a new task has a seed: so
    all episodes since a seed have one task, and can be followed again. An `observer` is told of every episode.
    `keep_scratch(row)` puts away what a failed environment has written, and says where that is.
    """

    def __init__(
        self,
        make: Callable[..., tuple[gym.Env[Any, Any], int | None]],
        num_envs: int,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        *,
        seed: int,
        first_index: int = 0,
        worker_index: int = 0,
        max_failures: int | None = None,
        randomizer: Randomizer | None = None,
        observer: EpisodeObserver | None = None,
        keep_scratch: Callable[[int], str] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.task: Any = None
        self.observer = observer
        self.num_envs = num_envs
        self.can_replay = True
        self.all_finals = False  # of terminated episodes too, which nobody learns from here
        self.replay_limit_s: float | None = None
        self._replay_clock = ReplayClock(None, 0)
        self.episodes: list[Episode] = []
        self.incidents: list[Incident] = []
        self._make, self._obs_spec, self._action_spec = make, obs_spec, action_spec
        self._seed, self._first_index, self._worker_index = seed, first_index, worker_index
        self._max_failures, self._randomizer, self._pace = max_failures, randomizer, pace
        self._keep_scratch = keep_scratch
        self._tasks: list[Any] = [None] * num_envs  # what each environment was given
        self._tasks_then: list[Any] = [None] * num_envs  # those of a saved state, for the episodes that are followed
        self._resets = [0] * num_envs  # since the last seed
        self._drawn = [EpisodeValues()] * num_envs
        self._made_for = [0] * num_envs  # the seeding that an environment's drawn env_config is for
        self._failures = 0
        self._failures_in_a_row = [0] * num_envs
        self._seedings = [0] * num_envs
        self._since_seed = np.zeros(num_envs, np.int64)
        self._rewards = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._limits = np.full(num_envs, np.iinfo(np.int64).max)
        self._blank = obs_spec.get(obs_spec.allocate(1), 0)
        self.columns: tuple[list[Any], ...] = tuple([None] * num_envs for _ in range(5))
        self.envs: list[Any] = [None] * num_envs
        self._steps: list[Callable[[Any], Any]] = [None] * num_envs  # type: ignore[list-item]
        for row in range(num_envs):
            self._build(row, 1)
        is_atari = type(getattr(self.envs[0], "unwrapped", None)).__module__.startswith("ale_py.")
        self._steps_between_seeds = STEPS_BETWEEN_ATARI_SEEDS if is_atari else STEPS_BETWEEN_SEEDS

    def counters(self) -> Counters:
        """What is counted of each environment's episode; whoever has it may change it in place."""
        return Counters(self._lengths, self._since_seed, self._rewards, self._limits)

    def count_in(self, counters: Counters) -> None:
        """Count in these arrays from now on, such as parts of larger ones."""
        for mine, theirs in zip(self.counters(), counters, strict=True):
            theirs[:] = mine
        self._lengths, self._since_seed, self._rewards, self._limits = counters

    def reset(self, obs: Parts) -> None:
        """See `Vector`."""
        for row in range(self.num_envs):
            self._begin(row, obs, seeded=True)

    def step(self, actions: NDArray[Any], active: NDArray[np.bool_] | None, steps: Steps) -> None:
        """See `Vector`."""
        observations, rewards, terminated, truncated, infos = self.columns
        decoded = self._action_spec.decode(actions)
        pid = here[0]
        for row, step in enumerate(self._steps):
            if active is not None and not active[row]:
                observations[row], rewards[row], terminated[row], truncated[row] = self._blank, 0.0, False, False
                continue
            try:
                observations[row], rewards[row], terminated[row], truncated[row], infos[row] = step(decoded[row])
            except BaseException as error:  # a solver that calls sys.exit() ends itself, not the run
                end_copy(pid, "step()")
                pass_on_interrupts(error)
                self._fail(row, error, decoded[row])
                steps.failed.append(row)
            if here[0] != pid:  # before a copy steps the next environment
                end_copy(pid, "step()")
        end_copy(pid, "step()")
        self.settle(steps, active, decoded)

    def take(self, decoded: Sequence[Any], failed: list[int]) -> None:
        """Take one step everywhere, and leave what it gave in `columns` for whoever settles several vectors at once."""
        observations, rewards, terminated, truncated, infos = self.columns
        pid = here[0]
        for row, step in enumerate(self._steps):
            try:
                observations[row], rewards[row], terminated[row], truncated[row], infos[row] = step(decoded[row])
            except BaseException as error:
                end_copy(pid, "step()")
                pass_on_interrupts(error)
                self._fail(row, error, decoded[row])
                failed.append(row)
            if here[0] != pid:
                end_copy(pid, "step()")
        end_copy(pid, "step()")

    def settle(self, steps: Steps, active: NDArray[np.bool_] | None, decoded: Sequence[Any]) -> None:
        """Write what came of the steps, guard it, and begin new episodes where they ended."""
        failed = steps.failed
        if failed or not self.written(self.columns, steps):
            self._write_one_by_one(steps, decoded)
        self._lengths += 1
        self._since_seed += 1
        self._rewards += steps.rewards
        steps.truncated |= self._lengths >= self._limits
        steps.truncated &= ~steps.terminated
        ended = steps.terminated | steps.truncated
        if active is not None:
            ended &= active
            self._lengths[~active] -= 1
            self._since_seed[~active] -= 1
            steps.valid[:] = active
            steps.terminated[~active] = True
            steps.truncated[~active] = False
        if failed:
            steps.valid[failed] = False
            steps.terminated[failed] = True
            steps.truncated[failed] = False
            ended[failed] = False
        if self.observer is not None:
            taken = np.ones_like(ended) if active is None else active
            self._show_steps(steps, taken if self.observer.wants_every_step else ended, decoded)
        self.go_on(steps, ended)

    def env_states(self) -> list[State | None]:
        """See `Vector`."""
        return [self._env_state(row) for row in range(self.num_envs)]

    def bring_back(
        self, states: Sequence[State | None], histories: Sequence[NDArray[Any] | None], obs: Parts
    ) -> list[bool]:
        """See `Vector`."""
        known = sum(len(history) for history in histories if history is not None)
        self._replay_clock = ReplayClock(self.replay_limit_s, known)
        rows = zip(states, histories, strict=True)
        return [self._bring_back(row, state, history, obs) for row, (state, history) in enumerate(rows)]

    def get_state(self) -> dict[str, Any]:
        """See `Vector`."""
        return {
            "seedings": list(self._seedings),
            "failures": self._failures,
            "task": self.task,
            "tasks": list(self._tasks),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Vector`."""
        self._seedings = [int(n) for n in state["seedings"]]
        self._failures = int(state["failures"])
        self.task, self._tasks_then = state["task"], list(state["tasks"])
        for row, task in enumerate(self._tasks_then):
            if task is None and self._tasks[row] is not None:
                self._rebuild(row)  # nobody can take a task back

    def call(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Vector`."""
        with comes_back_once("a function that was called on it"):
            return [fn(env) for env in self.envs]

    def call_each(self, functions: Mapping[int, Callable[[Any], T]]) -> dict[int, T]:
        """The results of each row's own function of its environment."""
        return {row: fn(self.envs[row]) for row, fn in functions.items()}

    def close(self) -> None:
        """See `Vector`."""
        close_all_quietly(self.envs)

    def written(self, columns: Sequence[list[Any]], steps: Steps) -> bool:
        """Write what all rows gave at once, here or in vectors like this one; False if any of it is unfit."""
        observations, rewards, terminated, truncated, *_ = columns
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused below
                self._obs_spec.put_all(observations, steps.obs)
                numbers = np.array(rewards)
                steps.rewards[:] = numbers
                squares = np.dot(steps.rewards, steps.rewards)
            if not (_are_flags(terminated) and _are_flags(truncated)):
                return False
            steps.terminated[:] = terminated
            steps.truncated[:] = truncated
        except Exception:
            return False
        # NaN, infinity and anything above the largest reward are not at most its square.
        if numbers.ndim != 1 or numbers.dtype.kind not in NUMBERS or not squares <= LARGEST_REWARD**2:
            return False
        return self._obs_spec.problem(steps.obs, steps.terminated, steps.truncated) is None

    def _write_one_by_one(self, steps: Steps, decoded: Sequence[Any]) -> None:
        """Write what is sound and blame what is not."""
        observations, rewards, terminated, truncated, _ = self.columns
        for row in range(self.num_envs):
            if row not in steps.failed:
                try:
                    steps.rewards[row] = reward_number(rewards[row])
                    steps.terminated[row] = _flag("terminated", terminated[row])
                    steps.truncated[row] = _flag("truncated", truncated[row])
                    ended = bool(steps.terminated[row] or steps.truncated[row])
                    self._obs_spec.put(observations[row], steps.obs, row, ended)
                except Exception as error:
                    self._fail(row, error, decoded[row])
                    steps.failed.append(row)
            if row in steps.failed:
                steps.rewards[row] = 0.0

    def _show_steps(self, steps: Steps, shown: NDArray[np.bool_], decoded: Sequence[Any]) -> None:
        """Tell the observer what came of the steps; one that failed did not happen."""
        observations, _, _, _, infos = self.columns
        for row in shown.nonzero()[0].tolist():
            if row not in steps.failed:
                self._show_step(row, decoded[row], observations[row], float(steps.rewards[row]), infos[row])

    def _show_step(self, row: int, action: Any, obs: Any, reward: float, info: Any) -> None:
        if self.observer is not None:
            length, total_reward = int(self._lengths[row]), float(self._rewards[row])
            self.observer.step(self._first_index + row, action, obs, reward, info, length, total_reward)

    def go_on(self, steps: Steps, ended: NDArray[np.bool_]) -> None:
        """Begin the next episode where one has ended, or was cut by a failure."""
        for row in ended.nonzero()[0].tolist():
            self._end(row, steps)
        for row in steps.failed:
            self._begin(row, steps.obs, seeded=True)
            steps.seeded.append(row)

    def _end(self, row: int, steps: Steps) -> None:
        """Record a finished episode and begin the next."""
        if steps.truncated[row] or self.all_finals:
            steps.finals.append((row, tuple(part[row].copy() for part in steps.obs)))
        index, reward, length = self._first_index + row, float(self._rewards[row]), int(self._lengths[row])
        self.episodes.append(Episode(index, reward, length, self._metrics(row), self._tasks[row]))
        self._failures_in_a_row[row] = 0
        if self._begin(row, steps.obs, seeded=self._since_seed[row] >= self._steps_between_seeds):
            steps.seeded.append(row)

    def _metrics(self, row: int) -> dict[str, float]:
        """The numbers of a finished episode that its results show."""
        info = self.columns[4][row]
        metrics = plain_numbers(info) if isinstance(info, dict) else {}
        if self.observer is not None:
            metrics |= self.observer.end(self._first_index + row)
        return metrics

    def _begin(self, row: int, obs: Parts, seeded: bool) -> bool:
        """Start the next episode, rebuilding the environment as often as its failures are forgiven.

        Returns whether it began with a seed: as asked for, or because the environment or its task is a new one.
        """
        makes_anew = self._randomizer is not None and self._randomizer.has_env_config
        while True:
            self._lengths[row], self._rewards[row] = 0, 0.0
            seeded = seeded or makes_anew or self.task != self._tasks[row]
            if seeded:
                self._seedings[row] += 1
                self._since_seed[row] = 0
            try:
                with comes_back_once("reset()"):
                    first = self._reset(row, seeded, self.task)
                self._obs_spec.put(first, obs, row)
                return seeded
            except CallbackError:
                raise
            except BaseException as error:
                pass_on_interrupts(error)
                self._fail(row, error, None)
                seeded = True

    def _reset(self, row: int, seeded: bool, task: Any) -> Any:
        """The first observation of an episode at a task, with what is drawn for it."""
        keywords: dict[str, Any] = {"seed": self._reset_seed(row)} if seeded else {}
        self._resets[row] = 0 if seeded else self._resets[row] + 1
        if self._randomizer is not None:
            if self._randomizer.has_env_config and self._made_for[row] != self._seedings[row]:
                close_quietly(self.envs[row])
                self._build(row, self._seedings[row])
            self._drawn[row] = self._draw(row, self._seedings[row], self._resets[row])
            if self._randomizer.has_options:
                keywords["options"] = dict(self._drawn[row].options)
        if task is not None and task != self._tasks[row]:
            set_task(self.envs[row], task)
            self._tasks[row] = task
        if self._pace is not None:
            self._pace.wait()
        first, _ = self.envs[row].reset(**keywords)
        if self.observer is not None:
            index = self._first_index + row
            self.observer.begin(index, self.envs[row], first, self._tasks[row], self._drawn[row])
        return first

    def _env_state(self, row: int) -> State | None:
        """Where an environment stands, with the counters of its episode; None where only its actions tell that.

        Whoever is told of episodes as they happen is told of them again, so then they are followed by their actions.
        """
        env = self.envs[row]
        if self.observer is not None or not offers_state(env):
            return None
        try:
            with comes_back_once("get_state()"):
                state = state_of(env)
        except BaseException as error:
            pass_on_interrupts(error)
            notice_once(f"get_state() of the environment failed, so its actions are replayed: {error_text(error)}")
            return None
        if state is None:
            return None
        counters = {
            "length": int(self._lengths[row]),
            "reward": float(self._rewards[row]),
            "since_seed": int(self._since_seed[row]),
            "resets": self._resets[row],
        }
        return State({**state.values, **counters}, state.arrays)

    def _bring_back(self, row: int, state: State | None, history: NDArray[Any] | None, obs: Parts) -> bool:
        if state is None or self.observer is not None or not offers_state(self.envs[row]):
            return self._replay(row, history, obs)
        try:
            with comes_back_once("set_state()"):
                self._reset(row, True, self._tasks_then[row])
                restore_state(self.envs[row], state)
        except BaseException as error:
            pass_on_interrupts(error)
            notice_once(f"set_state() of the environment failed, so its actions are replayed: {error_text(error)}")
            self._rebuild(row)
            return self._replay(row, history, obs)
        values = state.values
        self._lengths[row], self._rewards[row] = int(values["length"]), float(values["reward"])
        self._since_seed[row], self._resets[row] = int(values["since_seed"]), int(values["resets"])
        if self._randomizer is not None:
            self._drawn[row] = self._draw(row, self._seedings[row], self._resets[row])
        return True

    def _replay(self, row: int, history: NDArray[Any] | None, obs: Parts) -> bool:
        if history is not None:
            try:
                with comes_back_once("a replayed step()"):
                    self._follow(row, history, obs)
                return True
            except CallbackError:
                raise
            except BaseException as error:
                pass_on_interrupts(error)
                # That the episode does not come back is no failure of a run: the next one begins.
                self._rebuild(row)
        self._begin(row, obs, seeded=True)
        return False

    def _follow(self, row: int, history: NDArray[Any], obs: Parts) -> None:
        """From the last seed, take the recorded actions through however many episodes they made."""
        task = self._tasks_then[row]
        self._lengths[row], self._rewards[row], self._since_seed[row] = 0, 0.0, len(history)
        last = self._reset(row, True, task)
        step = self.envs[row].step
        for action in self._action_spec.decode(history) if len(history) else ():
            self._replay_clock.step()
            last, reward, terminated, truncated, info = step(action)
            self._lengths[row] += 1
            self._rewards[row] += np.float32(reward_number(reward))
            self._show_step(row, action, last, float(reward), info)
            ended = _flag("terminated", terminated) or _flag("truncated", truncated)
            if ended or self._lengths[row] >= self._limits[row]:
                self._lengths[row], self._rewards[row] = 0, 0.0
                last = self._reset(row, False, task)
        self._obs_spec.put(last, obs, row)

    def _reset_seed(self, row: int) -> int:
        return reset_seed(self._seed, self._first_index + row, self._seedings[row])

    def _draw(self, row: int, seeding: int, reset: int) -> EpisodeValues:
        assert self._randomizer is not None
        return self._randomizer.draw(self._first_index + row, seeding, reset)

    def _build(self, row: int, seeding: int) -> None:
        """Make an environment whose next reset has the `seeding`-th seed."""
        if self._randomizer is None or not self._randomizer.has_env_config:
            env, limit = self._make(row)
        else:
            env, limit = self._make(row, self._draw(row, seeding, 0).env_config)
        self.envs[row], self._steps[row] = env, env.step
        self._tasks[row], self._made_for[row] = None, seeding
        self._limits[row] = np.iinfo(np.int64).max if limit is None else limit

    def _fail(self, row: int, error: BaseException, action: Any) -> None:
        """Write the failure down, rebuild the environment, or end the run when it is one failure too many."""
        if action is not None and _is_no_five(error):
            told = f"step() must return obs, reward, terminated, truncated and info ({error})"
            error = ValueError(told).with_traceback(error.__traceback__)
        lost = error if isinstance(error, ProgramLost) else ProgramLost("")  # of others, there is no more to tell
        incident = Incident(
            env_index=self._first_index + row,
            worker_index=self._worker_index,
            seed=self._reset_seed(row),
            steps_since_seed=int(self._since_seed[row]) + (action is not None),
            step=int(self._lengths[row]) + (action is not None),
            action="none, in reset" if action is None else on_one_line(action),
            cause=named_text(error).splitlines()[0],
            traceback="".join(traceback.format_exception(error)),
            scratch="" if self._keep_scratch is None else self._keep_scratch(row),
            settings=settings_text(self._tasks[row], self._drawn[row]),
            kind=lost.kind,
            exit_code=lost.status,
            output=lost.output,
            time=time(),
            seeding=self._seedings[row],
            task=self._tasks[row],
            options=self._drawn[row].options,
            env_config=self._drawn[row].env_config,
        )
        self.incidents.append(incident)
        self._failures += 1
        # A failure on the first step or in reset, time and again, is no progress at all.
        self._failures_in_a_row[row] = self._failures_in_a_row[row] + 1 if self._lengths[row] == 0 else 1
        limit = self._max_failures
        if limit is not None and self._failures > limit:
            count = f"That was failure {self._failures} and max_env_failures is {limit}."
            raise EnvError(f"{describe(incident)}\n{count}") from error
        if self._failures_in_a_row[row] >= MOST_FAILURES_IN_A_ROW:
            times = MOST_FAILURES_IN_A_ROW
            raise EnvError(f"{describe(incident)}\nIt failed {times} times in a row without one good step.") from error
        self._rebuild(row)

    def _rebuild(self, row: int) -> None:
        """Put a new environment in the place of one that failed; if it cannot be made, that is one failure more."""
        close_quietly(self.envs[row])
        self._lengths[row] = 0
        try:
            self._build(row, self._seedings[row] + 1)
        except BaseException as error:
            pass_on_interrupts(error)
            self._fail(row, error, None)


def _is_no_five(error: BaseException) -> bool:
    """Whether it was raised here, by taking apart what a step has returned."""
    is_here = error.__traceback__ is not None and error.__traceback__.tb_next is None
    return is_here and isinstance(error, TypeError | ValueError) and "unpack" in str(error)


def settings_text(task: Any, drawn: EpisodeValues) -> str:
    """What an episode was given beside its seed, in words."""
    given = {"task": task, "options": drawn.options, "env_config": drawn.env_config}
    return ", ".join(f"{name} {on_one_line(value)}" for name, value in given.items() if value not in (None, {}))


def describe(incident: Incident) -> str:
    """One sentence on a failure, with what is needed to see it again."""
    place = f" on {incident.host}" if incident.host else ""
    return (
        f"environment {incident.env_index}{place} failed at step {incident.step} of its episode "
        f"(seed {incident.seed} set {counted(incident.steps_since_seed, 'step')} before, action {incident.action}"
        f"{', ' if incident.settings else ''}{incident.settings}): "
        f"{incident.cause}"
    )


def reward_number(reward: Any) -> float:
    """The reward as a float; arrays, None and what is not finite are refused."""
    if np.ndim(reward):
        raise ValueError(f"reward is an array of shape {np.shape(reward)}, but must be one number")
    if reward is None or isinstance(reward, str | bytes):
        raise ValueError(f"reward is {reward!r}, but must be one number")
    number = float(reward)
    if not isfinite(number):
        raise ValueError(f"reward is {number}, but must be a finite number")
    if abs(number) > LARGEST_REWARD:
        raise ValueError(f"reward is {number:g}, and {LARGEST_REWARD:g} is the largest; give rewards in another unit")
    return number


def _are_flags(values: list[Any]) -> bool:
    """Whether each is True or False, or a number that says the same; almost always, all are False."""
    unset = values.count(False)
    return unset == len(values) or unset + values.count(True) == len(values)


def _flag(name: str, value: Any) -> bool:
    """Whether an episode ended: True or False, or 0 or 1; anything else says nothing."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, int | float | np.number) and value in (0, 1):
        return bool(value)
    raise ValueError(f"{name} is {value!r}, but must be True or False")


def plain_numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of an info, which become the run's custom metrics."""
    plain: tuple[type[Any], ...] = (int, float, np.integer, np.floating, np.bool_)
    return {
        str(key): float(value)
        for key, value in info.items()
        if (isinstance(value, plain) or _is_scalar_array(value)) and abs(value) < LARGEST_METRIC
    }


def _is_scalar_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"


def on_one_line(value: Any) -> str:
    """A value as text of one line that is not too long."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:197] + "..."
