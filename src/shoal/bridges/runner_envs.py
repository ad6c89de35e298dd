"""Our environments in the sampling processes of RLlib, and the desk where they tell what happens to them."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.bridges.module_policy import ModulePolicy
from shoal.bridges.plain_spaces import PlainForm
from shoal.config.changing import unchecked
from shoal.config.rllib import RLlibConfig
from shoal.data.batch import Array, Episode, Incident, Parts
from shoal.envs.making import EnvMaker
from shoal.envs.spaces import Space
from shoal.envs.vector import Steps
from shoal.errors import ShoalError
from shoal.sampling.worker import Worker


@dataclass(frozen=True)
class RunnerPlan:
    """What an env runner must know to make our environments."""

    config: RLlibConfig
    maker: EnvMaker
    obs_space: Space
    action_space: Space


@dataclass(frozen=True)
class DeskReport:
    """What the desk has heard since it was last asked."""

    episodes: list[Episode]
    incidents: list[Incident]
    end: str = ""  # why an environment gave up; empty: none did
    crash: str = ""  # what RLlib itself failed with in a runner; empty: nothing


class RunnerDesk:
    """Where environments in all processes tell what happened to them; an actor of Ray."""

    def __init__(self, plan: bytes) -> None:
        self._plan = plan
        self._report = DeskReport([], [])

    def plan(self) -> bytes:
        """The plan of the runners, as cloudpickle has it: the user's modules are found only where it is opened."""
        return self._plan

    def tell(self, episodes: list[Episode], incidents: list[Incident], end: str = "", crash: str = "") -> None:
        """Hear of episodes and failures; `end` and `crash` say why it cannot go on."""
        old = self._report
        self._report = DeskReport(
            old.episodes + episodes, old.incidents + incidents, old.end or end, old.crash or crash
        )

    def take(self) -> DeskReport:
        """What was told since the last time."""
        report = self._report
        self._report = replace(report, episodes=[], incidents=[])
        return report


class CrashReporter(logging.Handler):
    """Passes on to the desk what RLlib only logs before it ends a runner: the error that the runner failed with."""

    def __init__(self, desk: Any) -> None:
        super().__init__(logging.ERROR)
        self._desk = desk

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of a record that has an exception."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._desk.tell.remote([], [], "", f"{type(error).__name__}: {error}")


class RunnerEnv(gym.Env[Array, Any]):
    """One of our environments as RLlib steps it.

    It never raises: RLlib would wait a minute for a runner whose environment did, and not tell why. A step that failed
    ends the episode as truncated, with a reward of 0. An environment that has failed too often tells the desk, and then
    ends every episode at once until the trainer has read that.
    """

    def __init__(self, plan: RunnerPlan, desk: Any, worker_index: int, env_index: int) -> None:
        self._plan, self._desk = plan, desk
        self._worker_index, self._env_index = worker_index, env_index
        self._form = PlainForm(plan.obs_space, plan.action_space, plan.config)
        self.observation_space, self.action_space = self._form.observation_space, self._form.action_space
        self._worker: Worker | None = None
        self._current = self._form.obs_spec.allocate(1)
        self._is_over = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: the first in the environment's own stream of seeds, or the one that has begun already."""
        del seed, options
        if self._worker is None and not self._is_over:
            with self._giving_up():
                self._worker = self._make()
                self._worker.vector.reset(self._current)
        self._tell()
        return self._seen(self._current), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step in our environment layer, which has begun the next episode where this one ended."""
        if self._worker is None or self._is_over:
            return self._seen(self._current), 0.0, False, True, {}
        last = self._seen(self._current)
        flags = np.zeros((3, 1), bool)
        steps = Steps(self._current, np.zeros(1, np.float32), flags[0], flags[1], ~flags[2])
        batch = tuple(np.asarray(part)[None] for part in action) if isinstance(action, tuple) else np.asarray([action])
        with self._giving_up():
            self._worker.vector.step(self._form.rows(batch), None, steps)
        self._tell()
        if self._is_over or steps.failed or not steps.valid[0]:
            return last, 0.0, False, True, {}
        seen = self._seen(self._current)
        for _, final in steps.finals:
            seen = self._seen(tuple(part[None] for part in final))
        return seen, float(steps.rewards[0]), bool(steps.terminated[0]), bool(steps.truncated[0]), {}

    def close(self) -> None:
        """Close the environment."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _make(self) -> Worker:
        config = self._plan.config
        pace = config.env_resets_per_s
        config = unchecked(
            config, num_envs_per_worker=1, env_resets_per_s=None if pace is None else pace / config.envs_per_worker
        )
        return Worker(
            config,
            self._plan.maker,
            worker_index=self._worker_index,
            policy=ModulePolicy(self._form),
            first_index=self._env_index,
            is_checked=True,
        )

    @contextlib.contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Turn the end of an environment into news for the desk."""
        try:
            yield
        except Exception as error:  # the boundary of a process: whatever it is, the trainer must hear of it
            self._is_over = True
            incidents = [] if self._worker is None else self._worker.vector.incidents[:]
            text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
            self._desk.tell.remote([], incidents, text)

    def _tell(self) -> None:
        """Tell the desk of episodes and failures, if there are any."""
        if self._worker is None or self._is_over:
            return
        vector = self._worker.vector
        if vector.episodes or vector.incidents:
            self._desk.tell.remote(vector.episodes[:], vector.incidents[:])
            vector.episodes.clear()
            vector.incidents.clear()

    def _seen(self, parts: Parts) -> Array:
        return np.array(self._form.seen(parts)[0])


def make_runner_env(context: Any) -> RunnerEnv:
    """One environment of an env runner, by RLlib's context, which says the runner but not which of its environments."""
    import cloudpickle
    import ray

    desk = ray.get_actor(context["desk"])
    plan: RunnerPlan = cloudpickle.loads(ray.get(desk.plan.remote()))
    count = plan.config.envs_per_worker
    place = next(context.setdefault("made", itertools.count())) % count
    runner = int(context.worker_index or 0)
    rllib = logging.getLogger("ray.rllib")
    if runner and not any(isinstance(handler, CrashReporter) for handler in rllib.handlers):
        rllib.addHandler(CrashReporter(desk))
    return RunnerEnv(plan, desk, runner, max(runner - 1, 0) * count + place)
