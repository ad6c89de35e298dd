"""Environments that cost nothing: they give again what real ones gave, so that acting and learning are timed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.config.settings import AlgorithmConfig
from shoal.data.batch import Batch, Episode, Incident, Parts, Sample
from shoal.data.state import State
from shoal.envs.vector import Steps
from shoal.models.policy import Policy
from shoal.sampling.sampler import Sampler

T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    """What a policy did in real environments; `period` is about how many steps an episode has, 0 if none ended."""

    policy: Policy
    batch: Batch
    period: int


class RecordedVector:
    """A `Vector` whose every step is a recorded one, in turn; an episode ends after each period."""

    def __init__(self, recording: Recording, num_envs: int) -> None:
        recorded = recording.batch
        self.num_envs, self.task, self.can_replay = num_envs, None, False
        self.episodes: list[Episode] = []
        self.incidents: list[Incident] = []
        count = recorded.rewards.size
        turns = np.arange(num_envs + count) % count
        self._rewards: NDArray[np.float32] = recorded.rewards.reshape(-1)[turns]
        self._obs: Parts = tuple(part.reshape(count, *part.shape[2:])[turns] for part in recorded.obs)
        self._count, self._period, self._taken = count, max(recording.period, 1), 0

    def reset(self, obs: Parts) -> None:
        """See `Vector`."""
        for part, known in zip(obs, self._obs, strict=True):
            part[:] = known[: self.num_envs]

    def step(self, actions: NDArray[Any], active: NDArray[np.bool_] | None, steps: Steps) -> None:  # noqa: ARG002
        """See `Vector`."""
        first = self._taken % self._count
        for part, known in zip(steps.obs, self._obs, strict=True):
            part[:] = known[first : first + self.num_envs]
        steps.rewards[:] = self._rewards[first : first + self.num_envs]
        self._taken += 1
        steps.terminated[:] = self._taken % self._period == 0
        steps.truncated[:] = False

    replay_limit_s: float | None = None  # it replays nothing

    def env_states(self) -> list[State | None]:
        """See `Vector`."""
        return [None] * self.num_envs

    def bring_back(
        self, states: Sequence[State | None], histories: Sequence[NDArray[Any] | None], obs: Parts
    ) -> list[bool]:
        """See `Vector`."""
        del states
        self.reset(obs)
        return [False] * len(histories)

    def get_state(self) -> dict[str, Any]:
        """See `Vector`."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Vector`."""

    def call(self, fn: Callable[[Any], T]) -> list[T]:  # noqa: ARG002
        """See `Vector`."""
        return []

    def close(self) -> None:
        """See `Vector`."""


class RecordedWorkers:
    """As much of a set of workers as an algorithm samples with, over recorded steps."""

    num_healthy_workers = num_remote_worker_restarts = 0
    oldest_pending_version: int | None = None  # nothing is sampled beside the learner

    def __init__(self, config: AlgorithmConfig, recording: Recording) -> None:
        self.config, self.policy, self.task = config, recording.policy, None
        self._begun: tuple[int, int] | None = None
        self._sampler = Sampler(self.policy, RecordedVector(recording, config.num_envs), config.seed)

    @property
    def steps_sampled(self) -> int:
        """See `Workers`."""
        return self._sampler.steps_sampled

    def sample(self, steps: int) -> Sample:
        """See `Workers`; episodes may be cut."""
        return self._sampler.sample(steps, self.config.explore)

    def begin_fragments(self, steps: int, version: int) -> None:
        """See `Workers`."""
        self._begun = steps, version

    def finished_fragments(self, wait: bool = True) -> list[Sample]:
        """See `Workers`."""
        if self._begun is None or not wait:
            return []
        (steps, version), self._begun = self._begun, None
        return [replace(self.sample(steps), weights_version=version)]
