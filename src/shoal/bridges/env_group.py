"""The environments of one process, as a program that brings its own algorithm steps them.

The group is that of training (`sampling/worker.py`): the same first look, isolation, deadlines, limits and guard.
Nobody of ours acts in it, so actions are the environment's own, neither scaled nor clipped.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Episode, Incident, Parts
from shoal.envs.isolated import IsolatedVector
from shoal.envs.making import EnvMaker
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec, Space
from shoal.envs.vector import PythonVector, Steps
from shoal.errors import ConfigError
from shoal.models.policy import Policy
from shoal.sampling.worker import Worker

T = TypeVar("T")

SEED_SHIFT = 32  # between the seeds of a group: fewer resets than 2**32 follow each
LARGEST_SEED = 1 << 30

Seeds = Sequence[int | None]
"""One for each environment, None where it has none."""
Infos = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""Those of an environment's last step and of the reset after it, where there were any."""


class KeptInfos(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps what an environment tells until it is asked for: from processes, infos come only then."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.kept: Infos = None, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env`."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.kept = self.kept[0], info
        return obs, info

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env`."""
        *rest, info = self.env.step(action)
        self.kept = info, None
        return *rest, info


def taken_infos(env: Any) -> Infos:
    """What an environment has kept, which it forgets."""
    while not isinstance(env, KeptInfos):
        env = env.env
    kept, env.kept = env.kept, (None, None)
    return kept


@dataclass(frozen=True)
class GroupFacts:
    """Where a group is, and what its environments see and do."""

    host: str
    pid: int
    observation_space: Space
    action_space: Space


@dataclass
class GroupReset:
    """Where the first actions of a group are taken, and what failed on the way there."""

    obs: Parts
    incidents: list[Incident] = field(default_factory=list)
    infos: dict[int, Infos] = field(default_factory=dict)


@dataclass
class GroupSteps:
    """What one step of all environments of a group gave; every array is the receiver's own."""

    obs: Parts  # where the next action is taken
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    failed: NDArray[np.bool_]  # rows whose step did not happen
    finals: dict[int, Parts] = field(default_factory=dict)  # the last observations of episodes that have ended
    episodes: list[Episode] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    infos: dict[int, Infos] = field(default_factory=dict)  # where they were asked for


class FormOnly(Policy):
    """Stands where a worker has its policy: it has the form of observations and actions, and does not act."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.action_spec = ActionSpec(action_space, normalize=False, clip=False)
        self.obs_spec = ObsSpec(observation_space)  # without `actions`: a mask is a part of them like any other
        self.network: Any = None
        self.ou = self.recurrence = self.candidates = self.act_and_value = None


class EnvGroup:
    """The environments that one worker has, here or in an actor of Ray (`served_group.py`)."""

    def __init__(self, config: AlgorithmConfig, maker: EnvMaker, worker_index: int, with_infos: bool = False) -> None:
        self._config, self._maker, self._worker_index, self._with_infos = config, maker, worker_index, with_infos
        self._worker: Worker | None = None

    def start(self) -> GroupFacts:
        """Make the environments.

        Not in the constructor: of what is raised there Ray keeps the text alone.
        """
        worker = Worker(self._config, self._maker, self._worker_index, any_size=True, policy_for=FormOnly)
        if not isinstance(worker.vector, PythonVector | IsolatedVector):
            worker.stop()
            raise ConfigError(
                f"env {self._maker.name}: it has several agents, or is a batch of environments already; "
                "make_vec takes an environment of one agent"
            )
        worker.vector.all_finals = True
        self._worker, self._vector = worker, worker.vector
        self._obs = worker.policy.obs_spec.allocate(worker.num_envs)
        return GroupFacts(socket.gethostname(), os.getpid(), worker.observation_space, worker.action_space)

    def reset(self, seeds: Seeds) -> GroupReset:
        """Begin new episodes everywhere; from a seed on, resets and what follows are the same each time.

        There is a seed for each environment; one without goes on with the seeds that it has.
        """
        vector = self._vector
        if any(seed is not None for seed in seeds):
            state = vector.get_state()
            seedings = list(state["seedings"])
            for row, seed in enumerate(seeds):
                if seed is not None:
                    seedings[row] = (seed % LARGEST_SEED) << SEED_SHIFT
            vector.set_state({**state, "seedings": seedings})
        vector.reset(self._obs)
        vector.episodes.clear()
        return GroupReset(_copied(self._obs), self._taken_incidents(), self._taken_infos())

    def step(self, actions: NDArray[Any]) -> GroupSteps:
        """Take one step everywhere with rows of actions `[N, A]`."""
        vector, count = self._vector, self._vector.num_envs
        steps = Steps(
            self._obs, np.zeros(count, np.float32), np.zeros(count, bool), np.zeros(count, bool), np.ones(count, bool)
        )
        vector.step(actions, None, steps)
        failed = ~steps.valid
        failed[steps.failed] = True
        episodes = vector.episodes[:]
        vector.episodes.clear()
        return GroupSteps(
            _copied(self._obs),
            steps.rewards,
            steps.terminated & ~failed,
            steps.truncated,
            failed,
            dict(steps.finals),
            episodes,
            self._taken_incidents(),
            self._taken_infos(),
        )

    def call(self, functions: Mapping[int, Callable[[Any], T]]) -> dict[int, T]:
        """The results of each row's own function of its environment."""
        return self._vector.call_each(functions)

    def stop(self) -> None:
        """Close the environments."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _taken_infos(self) -> dict[int, Infos]:
        rows = range(self._vector.num_envs) if self._with_infos else ()
        return self._vector.call_each(dict.fromkeys(rows, taken_infos))

    def _taken_incidents(self) -> list[Incident]:
        incidents = self._vector.incidents[:]
        self._vector.incidents.clear()
        return incidents


def _copied(parts: Parts) -> Parts:
    return tuple(part.copy() for part in parts)
