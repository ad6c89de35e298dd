"""Environments of several agents as rows: each agent of each environment is one row, which steps at its own pace.

A row's step begins with its action and ends when the agent is asked for its next one, or its part in the episode ends.
All rewards that it is given in between are those of the step, also where others act meanwhile. Who is not there, or not
asked, takes no step. `AgentEnvs` steps the environments; an `AgentRows` is what the sampler of one policy sees of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from time import time
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.data.batch import Episode, Incident, Parts
from shoal.data.state import State
from shoal.data.streams import reset_seed
from shoal.envs.agents import AgentsEnv, Moment
from shoal.envs.closing import close_quietly
from shoal.envs.copies import comes_back_once
from shoal.envs.env_errors import named_text, pass_on_interrupts
from shoal.envs.observations import ObsSpec
from shoal.envs.replay_clock import ReplayClock
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import (
    MOST_FAILURES_IN_A_ROW,
    STEPS_BETWEEN_SEEDS,
    Steps,
    describe,
    on_one_line,
    plain_numbers,
    reward_number,
)
from shoal.errors import EnvError

T = TypeVar("T")

MOST_KEPT_STEPS = 20_000  # of an environment since its seed


class AgentPhase(IntEnum):
    """What a row is at."""

    ABSENT = 0  # the agent takes no part, or was not asked yet
    ASKED = 1  # it has its observation, and is to act
    ACTED = 2  # its step goes on


@dataclass(frozen=True)
class PolicySlots:
    """The agents that one policy acts for, by their places among the agents of an environment, and their spaces."""

    name: str
    slots: tuple[int, ...]
    obs_spec: ObsSpec
    action_spec: ActionSpec


@dataclass
class Game:
    """One environment, and where it stands."""

    env: AgentsEnv
    returns: NDArray[np.float64]  # [A], of the episode's agents so far
    took_part: NDArray[np.bool_]  # [A], in this episode
    actions: dict[int, Any]  # of the coming step, in the environment's own terms, by slot
    numbers: dict[int, list[float]]  # the same actions as the policy has them
    history: list[float]  # those of all steps since the seed; each step's in the order of slots
    waiting: int = 0  # agents that are asked and have not acted
    length: int = 0  # steps of the episode
    since_seed: int = 0
    seedings: int = 0
    failures_in_a_row: int = 0


@dataclass(frozen=True)
class Mark:
    """Where an environment stood when a fragment ended. The history goes on, or is replaced at a seed."""

    seedings: int
    history: list[float]
    end: int  # of the history, then
    numbers: dict[int, list[float]]
    steps: int  # since the seed

    @classmethod
    def of(cls, game: Game) -> Mark:
        """Where it stands now."""
        return cls(game.seedings, game.history, len(game.history), dict(game.numbers), game.since_seed)

    def state(self) -> State | None:
        """What leads back to here; None where that would take too many steps."""
        if self.steps > MOST_KEPT_STEPS:
            return None
        slots = sorted(self.numbers)
        numbers = [*self.history[: self.end], *(number for slot in slots for number in self.numbers[slot])]
        return State({"given": slots, "steps": self.steps}, {"bytes": np.array(numbers, np.float64).view(np.uint8)})


class AgentEnvs:
    """E environments of the same agents, each guarded at the boundary.

    `make(k)` makes one. Episodes have the return of all agents together, and their length in steps of the environment;
    of each policy, results show the returns of its agents. Environments that fail are rebuilt alone. A policy's slots
    are places at the table; who `rotates`, lets agents change places from one environment to the next.
    """

    def __init__(
        self,
        make: Callable[[int], AgentsEnv],
        num_envs: int,
        agents: Sequence[str],
        policies: Sequence[PolicySlots],
        *,
        seed: int,
        first_index: int = 0,
        worker_index: int = 0,
        max_failures: int | None = None,
        horizon: int | None = None,
        rotates: bool = False,
    ) -> None:
        self._first_index = first_index
        self.seats = [_rotated(agents, first_index + k if rotates else 0) for k in range(num_envs)]
        self.num_envs = num_envs
        self.episodes: list[Episode] = []
        self.incidents: list[Incident] = []
        self.failures = 0
        self._make, self._seed, self._worker_index = make, seed, worker_index
        self._max_failures, self._horizon = max_failures, horizon
        self._replaying = False
        self.replay_limit_s: float | None = None
        self._replay_clock = ReplayClock(None, 0)
        self._has_begun = False
        self.groups = [AgentRows(self, slots) for slots in policies]
        self._place = {slot: (group, place) for group in self.groups for place, slot in enumerate(group.policy.slots)}
        self._count = count = len(agents)
        self.games = [Game(make(k), np.zeros(count), np.zeros(count, bool), {}, {}, []) for k in range(num_envs)]
        self._marks = [Mark.of(game) for game in self.games]
        self.brought_back = [False] * num_envs

    def begin(self) -> None:
        """Begin an episode everywhere, unless that was done."""
        if not self._has_begun:
            self._has_begun = True
            for k in range(self.num_envs):
                self._begin(k, seeded=True)

    def take_action(self, k: int, slot: int, action: Any, numbers: NDArray[Any]) -> None:
        """Give an environment the action of one agent, as the environment has it and as numbers."""
        game = self.games[k]
        game.actions[slot], game.numbers[slot] = action, numbers.tolist()
        game.waiting -= 1

    def advance(self) -> bool:
        """Step every environment all of whose agents have acted; whether there was any."""
        ready = [k for k, game in enumerate(self.games) if game.actions and not game.waiting]
        for k in ready:
            self._step(k)
        return bool(ready)

    def end_fragment(self) -> None:
        """Remember where the environments stand: that is where a saved state leads back to."""
        self._marks = [Mark.of(game) for game in self.games]

    def get_state(self) -> dict[str, Any]:
        """Counters, as JSON values."""
        return {"seedings": [mark.seedings for mark in self._marks], "failures": self.failures}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over the counters."""
        self.failures = int(state["failures"])
        for game, count in zip(self.games, state["seedings"], strict=True):
            game.seedings = int(count)

    def env_states(self) -> list[State | None]:
        """The actions of every environment since its seed; None of those that had too many."""
        return [mark.state() for mark in self._marks]

    def bring_back(self, states: Sequence[State | None]) -> None:
        """Lead every environment back to where its actions lead, or begin a new episode."""
        self._has_begun = True
        known = sum(state.values["steps"] for state in states if state is not None)
        self._replay_clock = ReplayClock(self.replay_limit_s, known)
        for k, state in enumerate(states):
            self.brought_back[k] = state is not None and self._follow(k, state)
            if not self.brought_back[k]:
                self._drop_actions(k)
                self._begin(k, seeded=True)
        for group in self.groups:
            group.done.clear()
        self.end_fragment()

    def close(self) -> None:
        """Close every environment."""
        for game in self.games:
            close_quietly(game.env)

    def _step(self, k: int) -> None:
        """Take one step of an environment, and see whose steps have ended with it."""
        game = self.games[k]
        actions = {self.seats[k][slot]: action for slot, action in sorted(game.actions.items())}
        for _, numbers in sorted(game.numbers.items()):
            game.history += numbers
        game.actions, game.numbers = {}, {}
        try:
            with comes_back_once("step()"):
                moment = game.env.act(actions)
            self._settle(k, moment)
        except BaseException as error:
            pass_on_interrupts(error)
            if self._replaying:
                raise
            self._fail(k, error, actions)
            self._cut(k)
            self._begin(k, seeded=True)
            return
        if not moment.live or self._is_at_horizon(game):
            self._end(k, moment)

    def _settle(self, k: int, moment: Moment) -> None:
        """Give each agent what it got, end the steps of those that are asked again, and ask who is to act."""
        game = self.games[k]
        is_cut = self._is_at_horizon(game, ahead=1)
        for slot, agent in enumerate(self.seats[k]):
            group, row = self._row(k, slot)
            reward = reward_number(moment.rewards.get(agent, 0.0))
            game.returns[slot] += reward
            goes_on = agent in moment.live and not is_cut
            if group.phase[row] == AgentPhase.ACTED:
                group.rows.rewards[row] += np.float32(reward)
                if not goes_on:
                    terminated = bool(moment.terminated.get(agent, False)) or (
                        not is_cut and not moment.truncated.get(agent, False)
                    )
                    group.end_step(row, terminated, not terminated, moment.observations.get(agent))
                elif agent in moment.to_act:
                    group.end_step(row, False, False)
            if goes_on and agent in moment.to_act:
                self._ask(k, slot, moment.observations[agent])
            elif not goes_on:
                group.phase[row] = AgentPhase.ABSENT
        game.length += 1
        game.since_seed += 1
        game.failures_in_a_row = 0

    def _ask(self, k: int, slot: int, obs: Any) -> None:
        game, (group, row) = self.games[k], self._row(k, slot)
        group.policy.obs_spec.put(obs, group.rows.obs, row)
        group.phase[row] = AgentPhase.ASKED
        game.took_part[slot] = True
        game.waiting += 1

    def _end(self, k: int, moment: Moment) -> None:
        """Record a finished episode and begin the next."""
        game = self.games[k]
        if not self._replaying:
            returns: dict[str, list[float]] = {}
            for slot in np.flatnonzero(game.took_part).tolist():
                name = self._place[slot][0].policy.name
                returns.setdefault(name, []).append(float(game.returns[slot]))
            metrics = _mean_numbers(moment.infos)
            total = float(game.returns.sum())
            self.episodes.append(Episode(self._first_index + k, total, game.length, metrics, policy_rewards=returns))
        self._begin(k, seeded=game.since_seed >= STEPS_BETWEEN_SEEDS)

    def _begin(self, k: int, seeded: bool) -> None:
        """Start the next episode, rebuilding the environment as often as its failures are forgiven."""
        game = self.games[k]
        while True:
            game.length = game.waiting = 0
            game.returns[:], game.took_part[:] = 0.0, False
            if seeded:
                game.seedings += 1
                game.since_seed, game.history = 0, []
            for slot in range(self._count):
                group, row = self._row(k, slot)
                group.phase[row] = AgentPhase.ABSENT
            try:
                with comes_back_once("reset()"):
                    moment = game.env.begin(self._reset_seed(k) if seeded else None)
                for agent in moment.to_act:
                    self._ask(k, self.seats[k].index(agent), moment.observations[agent])
                if not moment.to_act:
                    raise ValueError("no agent may act after reset()")
                return
            except BaseException as error:
                pass_on_interrupts(error)
                if self._replaying:
                    raise
                self._fail(k, error, None)
                seeded = True

    def _follow(self, k: int, state: State) -> bool:
        """Take the recorded actions since the last seed once more; whether that leads anywhere."""
        game = self.games[k]
        numbers = state.arrays["bytes"].view(np.float64)
        taken = 0
        self._replaying = True
        try:
            game.seedings -= 1  # which begins with it again
            self._drop_actions(k)
            self._begin(k, seeded=True)
            for _ in range(state.values["steps"]):
                self._replay_clock.step()
                taken = self._act_again(k, numbers, taken, range(self._count))
                self._step(k)
            taken = self._act_again(k, numbers, taken, state.values["given"])
            return taken == len(numbers) and game.since_seed == state.values["steps"]
        except BaseException as error:
            pass_on_interrupts(error)
            self._rebuild(k)  # that the episode does not come back is no failure of a run
            return False
        finally:
            self._replaying = False

    def _act_again(self, k: int, numbers: NDArray[np.float64], taken: int, slots: Iterable[int]) -> int:
        """Give those of the agents that are asked the recorded actions from `taken` on; returns where these end."""
        for slot in slots:
            group, row = self._row(k, slot)
            if group.phase[row] == AgentPhase.ASKED:
                size = group.policy.action_spec.size
                group.act(row, numbers[taken : taken + size])
                taken += size
        return taken

    def _drop_actions(self, k: int) -> None:
        game = self.games[k]
        game.actions, game.numbers = {}, {}

    def _cut(self, k: int) -> None:
        """End the steps of an environment that has failed: they are no transitions."""
        for slot in range(self._count):
            group, row = self._row(k, slot)
            if group.phase[row] == AgentPhase.ACTED or row in group.done:
                group.fail_step(row)

    def _fail(self, k: int, error: BaseException, actions: Mapping[str, Any] | None) -> None:
        """Write the failure down, rebuild the environment, or end the run when it is one failure too many."""
        game = self.games[k]
        stepped = actions is not None
        incident = Incident(
            env_index=self._first_index + k,
            worker_index=self._worker_index,
            seed=self._reset_seed(k),
            steps_since_seed=game.since_seed + stepped,
            step=game.length + stepped,
            action="none, in reset" if actions is None else on_one_line(actions),
            cause=named_text(error).splitlines()[0],
            traceback="".join(traceback.format_exception(error)),
            time=time(),
            seeding=game.seedings,
        )
        self.incidents.append(incident)
        self.failures += 1
        game.failures_in_a_row += 1
        if self._max_failures is not None and self.failures > self._max_failures:
            count = f"That was failure {self.failures} and max_env_failures is {self._max_failures}."
            raise EnvError(f"{describe(incident)}\n{count}") from error
        if game.failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            times = MOST_FAILURES_IN_A_ROW
            raise EnvError(f"{describe(incident)}\nIt failed {times} times in a row without one good step.") from error
        self._rebuild(k)

    def _rebuild(self, k: int) -> None:
        game = self.games[k]
        close_quietly(game.env)
        game.length = 0
        try:
            game.env = self._make(k)
        except Exception as error:
            self._fail(k, error, None)

    def _is_at_horizon(self, game: Game, ahead: int = 0) -> bool:
        return self._horizon is not None and game.length + ahead >= self._horizon

    def _row(self, k: int, slot: int) -> tuple[AgentRows, int]:
        group, place = self._place[slot]
        return group, k * len(group.policy.slots) + place

    def _reset_seed(self, k: int) -> int:
        return reset_seed(self._seed, self._first_index + k, self.games[k].seedings)


class LastSteps:
    """What the last step of each row gave, `[N]`, and where its next action is taken."""

    def __init__(self, count: int, obs_spec: ObsSpec) -> None:
        self.obs: Parts = obs_spec.allocate(count)
        self.final: Parts = obs_spec.allocate(count)
        self.rewards = np.zeros(count, np.float32)
        self.terminated = np.zeros(count, bool)
        self.truncated = np.zeros(count, bool)
        self.valid = np.ones(count, bool)
        self.failed = np.zeros(count, bool)
        self.seeded = np.zeros(count, bool)


class AgentRows:
    """The agents of one policy in all environments, behind the `Vector` contract: E * A rows.

    The environments' own state is that of the first policy's rows.
    """

    can_replay = False  # row by row; all rows of an environment together are brought back
    replay_limit_s: float | None = None

    def __init__(self, envs: AgentEnvs, policy: PolicySlots) -> None:
        self.envs, self.policy = envs, policy
        self.task: Any = None
        self.num_envs = envs.num_envs * len(policy.slots)
        self.rows = LastSteps(self.num_envs, policy.obs_spec)
        self.phase: NDArray[np.int8] = np.zeros(self.num_envs, np.int8)
        self.done: list[int] = []  # rows whose step has ended since they were last taken
        self.episodes, self.incidents = envs.episodes, envs.incidents

    @property
    def is_first(self) -> bool:
        """Whether these are the rows of the first policy."""
        return self.envs.groups[0] is self

    def asked(self) -> NDArray[np.int64]:
        """The rows that are to act."""
        return np.flatnonzero(self.phase == AgentPhase.ASKED)

    def acting(self) -> NDArray[np.bool_]:
        """Whose step goes on, `[N]`."""
        return np.asarray(self.phase == AgentPhase.ACTED)

    def send(self, rows: Sequence[int], actions: NDArray[Any]) -> None:
        """Begin the step of some rows with their actions of `[N, A]`."""
        for row in rows:
            self.act(row, actions[row])

    def act(self, row: int, numbers: NDArray[Any]) -> None:
        """Begin the step of one row with its action."""
        spec = self.policy.action_spec
        numbers = numbers.astype(spec.dtype)
        action = spec.decode(numbers[None])[0]
        k, place = divmod(row, len(self.policy.slots))
        self.phase[row], self.rows.rewards[row] = AgentPhase.ACTED, 0.0
        self.envs.take_action(k, self.policy.slots[place], action, numbers)

    def take_done(self) -> NDArray[np.int64]:
        """The rows whose step has ended."""
        done, self.done = sorted(self.done), []
        return np.array(done, np.int64)

    def end_step(self, row: int, terminated: bool, truncated: bool, last: Any = None) -> None:
        """End the step of a row; a truncated one has a last observation."""
        rows = self.rows
        if truncated:
            self.policy.obs_spec.put(last, rows.final, row, ended=True)
        rows.terminated[row], rows.truncated[row] = terminated, truncated
        rows.valid[row], rows.failed[row] = True, False
        self.done.append(row)

    def fail_step(self, row: int) -> None:
        """End the step of a row whose environment has failed."""
        rows = self.rows
        rows.terminated[row], rows.truncated[row], rows.rewards[row] = True, False, 0.0
        rows.valid[row], rows.failed[row] = False, True
        if row not in self.done:
            self.done.append(row)

    def final(self, row: int) -> Parts:
        """The last observation of the episode that a row's step has truncated."""
        return tuple(part[row].copy() for part in self.rows.final)

    def reset(self, obs: Parts) -> None:
        """See `Vector`."""
        self.envs.begin()
        self._copy_obs(obs)

    def step(self, actions: NDArray[Any], active: NDArray[np.bool_] | None, steps: Steps) -> None:
        """See `Vector`; agents step at their own pace, by `send` and `take_done`."""
        raise NotImplementedError

    def env_states(self) -> list[State | None]:
        """See `Vector`; an environment's state stands at the first of its rows."""
        states: list[State | None] = [None] * self.num_envs
        if self.is_first:
            states[:: len(self.policy.slots)] = self.envs.env_states()
        return states

    def bring_back(
        self,
        states: Sequence[State | None],
        histories: Sequence[NDArray[Any] | None],  # noqa: ARG002 - one row's actions alone lead nowhere
        obs: Parts,
    ) -> list[bool]:
        """See `Vector`; `obs` are where the rows stood, and tell whether they stand there again."""
        if self.is_first:
            self.envs.replay_limit_s = self.replay_limit_s
            self.envs.bring_back(states[:: len(self.policy.slots)])
        asked = self.phase == AgentPhase.ASKED
        stands = np.repeat(self.envs.brought_back, len(self.policy.slots))
        for part, own in zip(obs, self.rows.obs, strict=True):
            same = (part == own).reshape(self.num_envs, -1).all(axis=1)
            stands &= same | ~asked
        self._copy_obs(obs)
        return stands.tolist()

    def get_state(self) -> dict[str, Any]:
        """See `Vector`."""
        return self.envs.get_state() if self.is_first else {}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Vector`."""
        if self.is_first:
            self.envs.set_state(state)

    def call(self, fn: Callable[[Any], T]) -> list[T]:
        """See `Vector`; `fn` gets PettingZoo's environment."""
        return [fn(game.env.env) for game in self.envs.games]

    def close(self) -> None:
        """See `Vector`."""
        self.envs.close()

    def _copy_obs(self, obs: Parts) -> None:
        """Write where rows are to act; the others stay as they are."""
        asked = self.asked()
        for part, own in zip(obs, self.rows.obs, strict=True):
            part[asked] = own[asked]


def _rotated(agents: Sequence[str], by: int) -> tuple[str, ...]:
    """Who has each place: the agents in a circle, begun `by` places later."""
    by %= len(agents)
    return (*agents[by:], *agents[:by])


def _mean_numbers(infos: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of the agents' last infos: of each name, the mean over those that have it."""
    found: dict[str, list[float]] = {}
    for info in infos.values():
        for name, value in plain_numbers(info if isinstance(info, Mapping) else {}).items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}
