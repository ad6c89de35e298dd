"""What `shoal check` tries on an environment: everything that training will do to it, before node-hours are spent.

Each check is a function that plays with fresh environments and yields findings; `CHECKS` has them in their order. A
finding says what was seen and, unless all is well, what to do about it.

The checks run in a process of their own (`envs/examining.py`), which may die or hang with the simulator.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import cloudpickle
import numpy as np
import psutil
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from shoal.data.findings import Finding
from shoal.data.number_text import call_time_text
from shoal.envs.agents import AgentsEnv
from shoal.envs.checking import check_first_steps, obs_warnings
from shoal.envs.closing import CLOSE_TIMEOUT_S, close_quietly
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.env_limits import CLOSE_S
from shoal.envs.making import AnyEnv, EnvMaker, adapt_legacy
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec, Space, leaves_of
from shoal.errors import EnvError

SEED = 7
BATCH = 8  # environments of a batch that can have any number
COMPARED_STEPS = 200  # of two trajectories that should be the same
FEW_EPISODES = 5  # before memory is counted: caches fill, pools grow
LARGE_RETURN = 1e4
LEAK_MB_PER_1000_STEPS = 1.0
SLOW_STEP_S = 0.05
CLOSE_REMEDY = (
    "end in close() what the simulator runs without waiting for it for long; a program ends when it is told to close, "
    "when its input ends, or at SIGTERM"
)
UNEVEN = 10.0  # how many times the median the slowest twentieth of the steps takes


@dataclass
class Play:
    """What happened in one episode, or in a part of it."""

    rewards: list[float] = field(default_factory=list)
    observations: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    ended: bool = False

    def first_difference(self, other: Play) -> int | None:
        """The first step at which two plays differ; 0 is the reset."""
        for step, (mine, its) in enumerate(zip(self.observations, other.observations, strict=False)):
            if not _same(mine, its):
                return step
        for step, (reward, its_reward) in enumerate(zip(self.rewards, other.rewards, strict=False), start=1):
            if reward != its_reward:
                return step
        if len(self.rewards) != len(other.rewards):
            return min(len(self.rewards), len(other.rewards)) + 1
        return None


class Examination:
    """The environment that is examined, with what the checks share: its spaces, and the times of its calls.

    `episodes` and `budget_s` bound what each check plays; `max_steps` bounds one episode. `alive` is called before
    every call of the user's code, so that who watches can tell a slow environment from one that hangs. `timeout_s` is
    how long one call may take.
    """

    def __init__(
        self,
        maker: EnvMaker,
        env_config: dict[str, Any],
        episodes: int = 10,
        max_steps: int = 10_000,
        budget_s: float = 20.0,
        alive: Callable[[str], None] = lambda _: None,
        env_ranks: int = 0,
        timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.maker, self.env_config, self.env_ranks = maker, env_config, env_ranks
        self.episodes, self.max_steps, self.budget_s = episodes, max_steps, budget_s
        self.legacy = False
        self.step_s: list[float] = []
        self.reset_s: list[float] = []
        self.played: list[Play] = []  # by the check of random actions, for those after it
        self._alive, self._call = alive, ""
        self.longest_close_s = closing_limit_s(timeout_s)
        self.close_s = 0.0  # that the slowest close() took; one that has hung is called no more
        self.is_batch = self.has_agents = False
        self.is_repeatable = True
        self.is_randomized = False  # in training, which draws values for each episode; nothing is drawn here
        self.said: set[str] = set()  # warnings that a check has counted already

    def alive(self, call: str) -> None:
        """Say which call of the user's code comes next."""
        self._call = call
        self._alive(call)

    @property
    def close_hangs(self) -> bool:
        """Whether a close() had to be cut short."""
        return self.close_s >= self.longest_close_s

    def close(self, env: Any) -> None:
        """Close an environment, timed, and cut short where it hangs; what it raises is for another check."""
        if self.close_hangs:
            return
        call = self._call  # which an error that is on its way came from
        self.alive("close()")
        began = perf_counter()
        close_quietly(env, self.longest_close_s)
        self.close_s = max(self.close_s, perf_counter() - began)
        self.alive(call)

    def close_findings(self) -> Iterator[Finding]:
        """That close() hangs, or takes long; each is said once."""
        if self.close_hangs and "hangs" not in self.said:
            self.said |= {"hangs", "slow"}
            yield Finding("close", "problem", f"close() did not return within {self.longest_close_s:g} s", CLOSE_REMEDY)
        elif self.close_s > CLOSE_S and "slow" not in self.said:
            self.said.add("slow")
            text = f"close() takes {self.close_s:.1f} s; in a process of its own it is killed after {CLOSE_S:g} s"
            yield Finding("close", "warning", text, CLOSE_REMEDY)

    def make(self) -> Any:
        """A fresh environment."""
        self.alive("the constructor")
        env = self.maker.make(self.context())
        return adapt_legacy(env) if self.legacy else env

    def context(self) -> EnvContext:
        """What a fresh environment is told."""
        return EnvContext(self.env_config, num_envs=BATCH, env_ranks=self.env_ranks)

    def look(self, env: AnyEnv) -> None:
        """Remember the spaces of an environment."""
        self.is_batch, self.has_agents = isinstance(env, VectorEnv), isinstance(env, AgentsEnv)
        if isinstance(env, VectorEnv):
            self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        else:
            self.observation_space, self.action_space = env.observation_space, env.action_space
        self.actions = ActionSpec(self.action_space)
        self.mask = ObsSpec(self.observation_space, actions=self.actions, max_len=1).mask

    def reset(self, env: Any, seed: int | None = None) -> Any:
        """Reset an environment, timed."""
        self.alive("reset()")
        began = perf_counter()
        obs, _ = env.reset(seed=seed)
        self.reset_s.append(perf_counter() - began)
        return obs

    def play(self, env: Any, draw: Callable[[], Any], most: int, seed: int | None = None, keep: bool = False) -> Play:
        """Play one episode of at most `most` steps; `draw` gives the actions, which a mask may overrule."""
        obs = self.reset(env, seed)
        play = Play(observations=[copy.deepcopy(obs)] if keep else [])
        for _ in range(most):
            action = self.allowed(draw(), obs)
            self.alive("step()")
            began = perf_counter()
            obs, reward, terminated, truncated, _ = env.step(action)
            self.step_s.append(perf_counter() - began)
            play.rewards.append(_number(reward))
            play.warnings += obs_warnings(self.observation_space, obs, "step()")
            if keep:
                play.observations.append(copy.deepcopy(obs))
            if not np.isfinite(play.rewards[-1]):
                play.warnings.append(f"step(): the reward is not finite ({reward})")
            if terminated or truncated:
                play.ended = True
                break
        return play

    def random_actions(self, seed: int) -> Callable[[], Any]:
        """Draws of random actions, the same for the same seed."""
        own = copy.deepcopy(self.action_space)
        own.seed(seed)
        return own.sample

    def allowed(self, action: Any, obs: Any) -> Any:
        """The action, or where the observation's mask forbids it, the first one that is allowed."""
        if self.mask is None:
            return action
        row = self.mask.row(obs)
        if self.mask.stuck(row[None]).any():
            raise EnvError(self.mask.trouble(row))
        taken = self.actions.encode([action])
        for (column, count), start in zip(self.mask.choices, self.mask.starts.tolist(), strict=True):
            flags = row[start : start + count]
            if not flags[int(taken[0, column])]:
                taken[0, column] = int(flags.argmax())
        return self.actions.decode(taken)[0]


def closing_limit_s(timeout_s: float) -> float:
    """Seconds that a close() may take where other calls may take so many: training waits no longer either."""
    return min(timeout_s, CLOSE_TIMEOUT_S)


def first_steps(exam: Examination) -> Iterator[Finding]:
    """Spaces, one reset and one step, as before every training."""
    report = check_first_steps(exam.make, before=exam.alive)
    exam.legacy = report.legacy
    exam.look(report.env)
    exam.close(report.env)
    spaces_text = f"{_kind(exam.observation_space)} in, {_kind(exam.action_space)} out"
    yield Finding("first steps", "ok", f"it can be made, reset and stepped: {spaces_text}")
    if report.legacy:
        yield Finding("first steps", "note", "it has the interface of old Gym, which shoal adapts")
    for warning in report.warnings:
        if exam.is_batch or not warning.startswith("step()"):  # those of steps are counted in the episodes to come
            yield Finding("first steps", "warning", warning, "return what observation_space promises")
    if isinstance(report.env, AgentsEnv):
        agents = ", ".join(map(str, report.env.agents))
        yield Finding("first steps", "note", f"it has several agents ({agents}): most checks are for one")
    elif isinstance(report.env, VectorEnv):
        text = "it is a batch of environments, which steps them itself: most checks are for single ones"
        yield Finding("first steps", "note", text)


def random_play(exam: Examination) -> Iterator[Finding]:
    """Whole episodes of random actions: values in their ranges, finite, and episodes that end."""
    env = exam.make()
    began = perf_counter()
    try:
        for number in range(exam.episodes):
            exam.played.append(exam.play(env, exam.random_actions(number), exam.max_steps, SEED + number))
            if perf_counter() - began > exam.budget_s:
                break
    finally:
        exam.close(env)
    yield from _warnings_of(exam, "random actions", exam.played)
    unfinished = [play for play in exam.played if not play.ended]
    if unfinished:
        yield Finding(
            "random actions",
            "warning",
            f"{_episodes(len(unfinished))} of {len(exam.played)} did not end within {exam.max_steps:,} steps",
            "let it terminate or truncate, or set horizon (--set config.horizon=1000)",
        )
    if not unfinished and not any(play.warnings for play in exam.played):
        lengths = [len(play.rewards) for play in exam.played]
        span = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
        text = f"{_episodes(len(lengths))} of {span} steps, all values finite and in range"
        yield Finding("random actions", "ok", text)
    yield from _reward_findings(exam.played)


def extreme_actions(exam: Examination) -> Iterator[Finding]:
    """The corners of the action space, where simulators diverge."""
    corners = list(_corners(exam.action_space))
    env = exam.make()
    plays = []
    began = perf_counter()
    try:
        for corner in corners:
            plays.append(exam.play(env, partial(_constant, corner), min(exam.max_steps, 1000), SEED))
            if perf_counter() - began > exam.budget_s:
                break
    finally:
        exam.close(env)
    yield from _warnings_of(exam, "extreme actions", plays)
    if not any(play.warnings for play in plays):
        yield Finding("extreme actions", "ok", f"{len(plays)} constant actions, the lowest and the highest among them")


def seeding(exam: Examination) -> Iterator[Finding]:
    """The same seed and actions give the same episode, in another environment and in the same one again."""
    steps = min(exam.max_steps, COMPARED_STEPS)
    first, second = exam.make(), exam.make()
    try:
        one = exam.play(first, exam.random_actions(SEED), steps, SEED, keep=True)
        two = exam.play(second, exam.random_actions(SEED), steps, SEED, keep=True)
        again = exam.play(first, exam.random_actions(SEED), steps, SEED, keep=True)
        starts = [copy.deepcopy(exam.reset(first, seed)) for seed in range(5)]
    finally:
        exam.close(first)
        exam.close(second)
    remedy = "draw all chance from self.np_random, which super().reset(seed=seed) makes"
    for other, where in ((two, "a second environment"), (again, "the same environment, reset again,")):
        difference = one.first_difference(other)
        if difference is not None:
            at = "at reset()" if difference == 0 else f"from step {difference} on"
            text = f"with the same seed and actions {where} differs {at}: runs cannot be repeated or resumed exactly"
            yield Finding("seeding", "warning", text, remedy)
            exam.is_repeatable = False
            return
    yield Finding("seeding", "ok", f"the same seed gives the same {len(one.rewards)} steps, twice")
    if all(_same(a, b) for a, b in pairwise(starts)):
        text = "every seed begins with the same observation: either it always starts like this, or the seed is ignored"
        if exam.is_randomized:
            text = "every seed begins with the same observation here, where config.randomize draws nothing"
        yield Finding("seeding", "note", text)


def two_at_once(exam: Examination) -> Iterator[Finding]:
    """Two environments side by side do not disturb each other, as those of one worker must not."""
    if not exam.is_repeatable:
        yield Finding("two at once", "note", "is unknown, because the same seed does not give the same episode")
        return
    steps = min(exam.max_steps, COMPARED_STEPS)
    alone = exam.make()
    try:
        expected = exam.play(alone, exam.random_actions(SEED), steps, SEED, keep=True)
    finally:
        exam.close(alone)
    left, right = exam.make(), exam.make()
    try:
        neighbour = _Neighbour(exam, right)
        left_draw = exam.random_actions(SEED)

        def step_both() -> Any:
            neighbour.step()
            return left_draw()

        seen = exam.play(left, step_both, steps, SEED, keep=True)
    finally:
        exam.close(left)
        exam.close(right)
    difference = expected.first_difference(seen)
    if difference is None:
        yield Finding("two at once", "ok", "two environments in one process do not disturb each other")
        return
    yield Finding(
        "two at once",
        "warning",
        f"beside a second environment the same episode differs from step {difference} on: they share something",
        "keep state in self, not in module or class variables, files of one name or fixed ports; or use one "
        "environment for each worker (--set config.num_envs_per_worker=1)",
    )


class _Neighbour:
    """An environment that takes a step of its own between the steps of another."""

    def __init__(self, exam: Examination, env: Any) -> None:
        self._exam, self._env = exam, env
        self._draw = exam.random_actions(SEED + 1)
        self._obs = exam.reset(env, SEED + 1)

    def step(self) -> None:
        """Take one random step, and begin anew where an episode ends."""
        action = self._exam.allowed(self._draw(), self._obs)
        self._obs, _, terminated, truncated, _ = self._env.step(action)
        if terminated or truncated:
            self._obs = self._exam.reset(self._env)


def close_and_reopen(exam: Examination) -> Iterator[Finding]:
    """Closing works, also twice and before a reset, and a new one can be made afterwards."""
    if exam.close_hangs:
        return
    for prepared in ("after reset()", "before any reset()"):
        env = exam.make()
        try:
            if prepared == "after reset()":
                exam.reset(env, SEED)
            exam.alive("close()")
            env.close()
            env.close()
        except BaseException as error:
            pass_on_interrupts(error)
            text = f"close() {prepared}, or a second one, raised {error_text(error)}"
            yield Finding("close", "warning", text, "let close() do nothing if nothing is open")
            return
    yield Finding("close", "ok", "it closes, and can be made again")


def factory(exam: Examination) -> Iterator[Finding]:
    """Whether workers, which are other processes, can make it."""
    try:
        maker = pickle.loads(cloudpickle.dumps(exam.maker))
        exam.close(maker.make(exam.context()))
    except BaseException as error:
        pass_on_interrupts(error)
        remedy = "import inside the constructor what cannot be sent, and give it numbers and texts"
        yield Finding("workers", "problem", f"another process could not make it: {error_text(error)}", remedy)
        return
    yield Finding("workers", "ok", "other processes can make it")


def leaks(exam: Examination) -> Iterator[Finding]:
    """Memory, handles, threads and child processes over many episodes, and after it is closed."""
    process = psutil.Process()
    children_before = {child.pid for child in process.children(recursive=True)}
    began_with = 0
    handles_before, threads_before = _handles(), process.num_threads()
    env = exam.make()
    steps, memory = 0, 0
    began = perf_counter()
    try:
        for number in range(FEW_EPISODES + exam.episodes):
            if number == min(FEW_EPISODES, exam.episodes):
                gc.collect()
                memory, steps = _memory(process), 0
                handles, began_with = _handles(), len(process.children(recursive=True))
            steps += len(exam.play(env, exam.random_actions(number), min(exam.max_steps, 1000)).rewards)
            if perf_counter() - began > exam.budget_s and steps and memory:
                break
        gc.collect()
        grown_mb = (_memory(process) - memory) / 1e6
        handles_grown = _handles() - handles
        children_grown = len(process.children(recursive=True)) - began_with
    finally:
        exam.close(env)
    found = []
    rate = grown_mb / steps * 1000
    if rate > LEAK_MB_PER_1000_STEPS and grown_mb > 5:
        text = f"memory grows by {rate:.1f} MB per 1000 steps: a million steps take {rate:.0f} GB"
        found.append(Finding("leaks", "warning", text, "keep nothing from episode to episode"))
    if handles_grown > exam.episodes // 2:
        text = f"{handles_grown} more files or sockets are open after {exam.episodes} episodes"
        found.append(Finding("leaks", "problem", text, "close them at the end of an episode"))
    if children_grown > exam.episodes // 2:
        text = f"{children_grown} more child processes run after {exam.episodes} episodes"
        found.append(Finding("leaks", "problem", text, "end them before the next episode"))
    if exam.close_hangs:
        yield from found
        return
    left = [child for child in process.children(recursive=True) if child.pid not in children_before]
    if left:
        text = f"close() leaves {len(left)} child process{'es' * (len(left) != 1)}: {left[0].name()}"
        found.append(Finding("leaks", "warning", text, "end them in close()"))
    if process.num_threads() - threads_before > 1 or _handles() - handles_before > 2:
        found.append(Finding("leaks", "note", "close() leaves threads or open files behind"))
    yield from found
    if not found:
        yield Finding("leaks", "ok", f"memory, files and processes stay the same over {steps:,} steps")


def times(exam: Examination) -> Iterator[Finding]:
    """How long steps and resets take, and what follows for a layout."""
    step, reset = median(exam.step_s), median(exam.reset_s)
    slow = float(np.quantile(exam.step_s, 0.95))
    text = f"a step takes {call_time_text(step)} "
    text += f"(95 %: {call_time_text(slow)}, slowest {call_time_text(max(exam.step_s))}), "
    text += f"a reset {call_time_text(reset)} (slowest {call_time_text(max(exam.reset_s))})"
    yield Finding("times", "note" if step > SLOW_STEP_S else "ok", text)
    if step > SLOW_STEP_S:
        batch = 2048 * step
        remedy = "use workers (--num-workers auto), and a smaller train_batch_size"
        text = f"2048 steps, an iteration of PPO, take {call_time_text(batch)} in one process"
        yield Finding("times", "warning", text, remedy)
    if slow > UNEVEN * step and slow > SLOW_STEP_S:
        yield Finding("times", "note", "its steps are uneven: one in twenty takes more than ten times the median")
    if reset > 50 * step and reset > 0.1:
        yield Finding("times", "note", "a reset takes as long as many steps: short episodes cost most of the time")


CHECKS: dict[str, Callable[[Examination], Iterator[Finding]]] = {
    "first steps": first_steps,
    "random actions": random_play,
    "extreme actions": extreme_actions,
    "seeding": seeding,
    "two at once": two_at_once,
    "close": close_and_reopen,
    "workers": factory,
    "leaks": leaks,
    "times": times,
}


def _warnings_of(exam: Examination, check: str, plays: list[Play]) -> Iterator[Finding]:
    counts = Counter(warning for play in plays for warning in play.warnings if warning not in exam.said)
    exam.said |= counts.keys()
    total = sum(len(play.rewards) for play in plays)
    for warning, count in counts.items():
        is_broken = "not finite" in warning
        yield Finding(
            check,
            "problem" if is_broken else "warning",
            f"{warning}, in {count:,} of {total:,} steps",
            "end the episode there, before the bad value is returned"
            if is_broken
            else "make observation_space as wide as its values",
        )


def _reward_findings(plays: list[Play]) -> Iterator[Finding]:
    returns = [sum(play.rewards) for play in plays]
    largest = max(map(abs, returns))
    if np.isfinite(largest) and largest > LARGE_RETURN:
        text = f"returns are as large as {largest:.3g}"
        yield Finding("rewards", "note", text, "PPO and TRPO scale rewards themselves unless normalize_rewards is off")
    if len({reward for play in plays for reward in play.rewards}) == 1:
        text = f"every reward of random play is {plays[0].rewards[0]:g}: only the length of an episode can be learned"
        yield Finding("rewards", "note", text)


def _corners(space: Space) -> Iterator[Any]:
    """Constant actions: lowest, highest and middle of every continuous leaf; each value of a Discrete one."""
    if isinstance(space, spaces.Discrete):
        for value in range(min(int(space.n), 10)):
            yield space.start + value
        return
    for share in (0.0, 1.0, 0.5):
        yield _at(space, share)


def _constant(action: Any) -> Any:
    return action


def _at(space: Space, share: float) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _at(child, share) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_at(child, share) for child in space.spaces)
    if isinstance(space, spaces.Box):
        low = np.where(np.isfinite(space.low), space.low, -1e3)
        high = np.where(np.isfinite(space.high), space.high, 1e3)
        return np.clip(low + share * (high - low), low, high).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return space.start + round(share * (int(space.n) - 1))
    if isinstance(space, spaces.MultiDiscrete):
        return np.round(share * (space.nvec - 1)).astype(space.dtype) + getattr(space, "start", 0)
    return np.full(space.shape or (), round(share), space.dtype)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f")


def _number(reward: Any) -> float:
    try:
        return float(np.asarray(reward).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        raise EnvError(f"step() must return a number as reward (got {reward!r})") from None


def _kind(space: Space) -> str:
    count = sum(1 for _ in leaves_of(space))
    return f"{type(space).__name__} of {count} parts" if count > 1 else " ".join(str(space).split())


def _memory(process: psutil.Process) -> int:
    """Bytes of a process and of all that it has started, which may be the simulator."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total


def _handles() -> int:
    """Open files and sockets of this process and of all that it has started."""
    count = len(os.listdir("/proc/self/fd"))
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            count += child.num_fds()
    return count


def _episodes(count: int) -> str:
    return f"{count} episode{'s' * (count != 1)}"
