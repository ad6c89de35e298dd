"""N environments in processes of their own behind the `Vector` contract.

What is promised:

- Each environment has a process (`envs/env_process.py`), forked by one that holds neither Ray nor PyTorch
  (`envs/fork_server.py`). Observations, rewards, flags and actions lie in memory that both share
  (`envs/shared_rows.py`); a step costs one byte there and eight back.
- A sampler may give actions to any rows (`send`) and take those that have answered (`wait`), in whatever order; `step`
  does that for all rows. A row's own numbers are the same either way: they depend on its seeds and actions alone.
- An environment that raises or gives nonsense is rebuilt in its process, by the same guard as everywhere. One whose
  process is lost gets a new one (`envs/env_slots.py`).
- `close` takes seconds at most, hung environments or not, and leaves no process behind; nor does a worker that is
  killed.
- Counters are those of `PythonVector`, so a run may be continued with environments in processes or without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from shutil import rmtree
from time import monotonic
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Array, Episode, Parts
from shoal.data.state import State
from shoal.envs.env_limits import Limits
from shoal.envs.env_process import Actor, EnvPlan, EnvStart
from shoal.envs.env_slots import LOST, EnvSlots, Raised
from shoal.envs.observations import ObsSpec
from shoal.envs.process_messages import packed
from shoal.envs.spaces import ActionSpec, Space
from shoal.envs.vector import Steps, describe
from shoal.errors import EnvError

T = TypeVar("T")

QUIET_S = 0.005  # that quick environments may take for a step, all of them together
MOST_QUIET_MISSES = 3


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
        actor: Actor | None = None,
    ) -> None:
        """With an `actor`, processes may act by themselves for a stretch of steps (`envs/env_process.py`)."""
        self.num_envs = num_envs
        self.can_replay = True
        self.all_finals = False  # see `PythonVector`
        self.replay_limit_s: float | None = None
        self._scratch = plan.scratch
        self._offers_states = True  # until they are asked
        self._quiet_until = 0.0
        self._quiet_misses = 0  # of groups that took longer
        self._seedings_then: NDArray[np.int64] = np.zeros(num_envs, np.int64)  # when each row was given its last action
        try:
            first = EnvStart(plan, obs_spec, action_spec, *spaces, seed, num_envs, 0, limits.restart_delay_s, actor)
            self._slots = EnvSlots(first, limits, max_failures)
        except BaseException:
            self._remove_scratch()
            raise
        self.rows = self._slots.rows
        self.episodes, self.incidents = self._slots.episodes, self._slots.incidents

    @property
    def task(self) -> Any:
        """See `Vector`."""
        return self._slots.task

    @task.setter
    def task(self, task: Any) -> None:
        self._slots.task = task

    def reset(self, obs: Parts) -> None:
        """See `Vector`."""
        for row in range(self.num_envs):
            self._slots.begin(row)
        self._finish(range(self.num_envs))
        for part, own in zip(obs, self.rows.obs, strict=True):
            part[:] = own

    @property
    def longest_stretch(self) -> int:
        """How many steps a row may be asked for at once; 0 if only one."""
        return self.rows.longest_stretch

    def set_weights(self, weights: Array, explores: bool, through_ends: bool) -> None:
        """Let all processes act by these numbers in their next stretches, with chance or without.

        A stretch goes on where an episode ends, or (not `through_ends`) ends there.
        """
        self.rows.weights[:] = weights
        self.rows.version[0] += 1
        self.rows.explores[0], self.rows.through_ends[0] = explores, through_ends

    def episode_passed(self, row: int, place: int) -> Episode:
        """The episode that has ended at this place of a row's stretch."""
        return self._slots.episode_passed(row, place)

    def send(self, rows: Sequence[int], actions: NDArray[Any], stretches: NDArray[np.int64] | int = 1) -> None:
        """Begin the step of some rows with their actions of `[N, A]`; each may take so many `stretches` of steps.

        The noise for all steps of a stretch but the first lies in the shared rows already.
        """
        which = slice(None) if len(rows) == self.num_envs else rows
        self.rows.stretch[which], self.rows.taken[which] = stretches, 0
        self.rows.actions[which] = actions[which]
        self._seedings_then[which] = self.rows.seedings[which]
        now = monotonic()
        self._set_quiet(which, len(rows), now, bool(np.max(stretches) > 1))
        self._slots.step(rows, now)

    def wait(self, patience_s: float = 0.0) -> list[int]:
        """Rows whose step is done, at least one; waits `patience_s` for more."""
        slots = self._slots
        if self._quiet_until:
            while slots.busy and (left := self._quiet_until - monotonic()) > 0:
                slots.wait_once(left)
            self._quiet_misses += bool(slots.busy)
            self._quiet_until = 0.0
            patience_s = 0.0
        slots.take_answers()
        while not slots.done:
            # Those that were told to be quiet will not wake us one by one.
            slots.wait_once(QUIET_S if self.rows.quiet[list(slots.busy)].any() else slots.tick_s)
        until = monotonic() + patience_s
        while slots.busy and patience_s and (left := until - monotonic()) > 0:
            slots.wait_once(left)
        done, slots.done = slots.done, []
        return done

    def begin_fragment(self, late: Collection[int] = ()) -> None:
        """Take environments for quick ones until they show that they are not; `late` ones may still be at a step."""
        self._quiet_misses = 0
        forgotten = self._slots.busy.difference(late)
        if forgotten:  # the last fragment ended by an error
            self._finish(forgotten)
        self._slots.done.clear()

    def is_busy(self, row: int) -> bool:
        """Whether a row has not answered yet."""
        return row in self._slots.busy

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
            if rows.truncated[row] or (self.all_finals and rows.ended[row]):
                steps.finals.append((row, self.final(row)))
        steps.failed += chosen[rows.failed[chosen]].tolist()
        steps.seeded += chosen[rows.seeded[chosen]].tolist()

    def final(self, row: int) -> Parts:
        """The last observation of the episode that a row's step has truncated."""
        return tuple(part[row].copy() for part in self.rows.final)

    def env_states(self) -> list[State | None]:
        """See `Vector`; of a row in the middle of a step there is none."""
        states: list[State | None] = [None] * self.num_envs
        if self._offers_states:
            asked = self._slots.ask_for_states()
            self._finish(asked)
            for row in asked:
                result = self._slots.result(row)
                states[row] = result if isinstance(result, State) else None
            self._offers_states = any(state is not None for state in states) or len(asked) < self.num_envs
        return states

    def bring_back(
        self, states: Sequence[State | None], histories: Sequence[NDArray[Any] | None], obs: Parts
    ) -> list[bool]:
        """See `Vector`."""
        for part, own in zip(obs, self.rows.obs, strict=True):
            own[:] = part  # which environments that have their state leave as it is
        for row, (env_state, history) in enumerate(zip(states, histories, strict=True)):
            self._slots.bring_back(row, env_state, history, self.replay_limit_s)
        self._finish(range(self.num_envs))
        for part, own in zip(obs, self.rows.obs, strict=True):
            part[:] = own
        return [self._slots.result(row) is True for row in range(self.num_envs)]

    def call(self, fn: Callable[[Any], T]) -> list[T]:
        """The result of `fn(env)` for every environment, run in its process."""
        results = self.call_each(dict.fromkeys(range(self.num_envs), fn))
        return [results[row] for row in range(self.num_envs)]

    def call_each(self, functions: Mapping[int, Callable[[Any], T]]) -> dict[int, T]:
        """The results of each row's own function of its environment, run in its process."""
        sent: dict[int, bytes] = {}  # a function that is that of many rows is packed once
        for row, fn in functions.items():
            if id(fn) not in sent:
                sent[id(fn)] = packed(fn, fn)
            self._slots.command(row, "call", sent[id(fn)])
        self._finish(functions)
        results: dict[int, Any] = {row: self._slots.result(row) for row in functions}
        if any(result is LOST for result in results.values()):
            raise EnvError(f"a function that was called on every environment failed: {describe(self.incidents[-1])}")
        for result in results.values():
            if isinstance(result, Raised):
                raise result.error
        return results

    def get_state(self) -> dict[str, Any]:
        """See `Vector`; a row in the middle of a step is where it was before."""
        seedings, busy = self.rows.seedings.copy(), list(self._slots.busy)
        seedings[busy] = self._seedings_then[busy]
        return {
            "seedings": seedings.tolist(),
            "failures": self._slots.failures,
            "task": self.task,
            "tasks": self._slots.tasks(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Vector`."""
        self.rows.seedings[:] = state["seedings"]
        self._slots.failures = int(state["failures"])
        self.task, self._slots.tasks_then = state["task"], list(state["tasks"])

    def close(self) -> None:
        """See `Vector`."""
        self._slots.close()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            rmtree(self._scratch, ignore_errors=True)

    def _set_quiet(self, rows: Sequence[int] | slice, count: int, now: float, stretches: bool) -> None:
        """Let only the last of these rows wake us, if they are quick and nobody else is at work."""
        is_quiet = not self._slots.busy and self._quiet_misses < MOST_QUIET_MISSES and not stretches
        self.rows.quiet[rows] = is_quiet
        if is_quiet:
            group = self._slots.group
            with suppress(BlockingIOError):
                while True:
                    os.eventfd_read(group)  # what a process that died has left
            if count > 1:
                os.eventfd_write(group, count - 1)
            self._quiet_until = now + QUIET_S

    def _finish(self, rows: Iterable[int]) -> None:
        """Wait until all of these rows have answered."""
        missing = set(rows)
        while missing:
            missing.difference_update(self.wait())
