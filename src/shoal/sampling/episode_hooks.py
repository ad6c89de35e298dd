"""The user's hooks at the episodes of a worker, as an observer of its vector. Without hooks, nobody observes it.

Hooks run where the environment is, since they are given it: in the worker's process, or in the environment's own, which
then has an instance of the user's class for itself. What hooks write into `custom_metrics` travels with the episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from shoal.envs.importing import UserCode
from shoal.envs.randomizing import EpisodeValues
from shoal.envs.vector import plain_numbers
from shoal.errors import CallbackError
from shoal.sampling.callbacks import DefaultCallbacks, LiveEpisode, call_hook, load_callbacks, overridden


class EpisodeHooks:
    """Calls `on_episode_start`, `on_episode_step` and `on_episode_end`; `worker` is what these get."""

    def __init__(self, callbacks: DefaultCallbacks, worker: Any) -> None:
        self._callbacks, self._worker = callbacks, worker
        self._hooks = overridden(callbacks)
        self.wants_every_step = "on_episode_step" in self._hooks
        self._episodes: dict[int, LiveEpisode] = {}  # by env_index
        self._envs: dict[int, Any] = {}

    def begin(self, env_index: int, env: Any, obs: Any, task: Any, drawn: EpisodeValues) -> None:
        """See `EpisodeObserver`."""
        self._envs[env_index] = env
        self._episodes[env_index] = LiveEpisode(env_index, task, drawn.options, drawn.env_config, last_obs=obs)
        self._call("on_episode_start", env_index)

    def step(
        self, env_index: int, action: Any, obs: Any, reward: float, info: Any, length: int, total_reward: float
    ) -> None:
        """See `EpisodeObserver`."""
        episode = self._episodes[env_index]
        episode.length, episode.total_reward = length, total_reward
        episode.last_obs, episode.last_action, episode.last_reward = obs, action, reward
        episode.last_info = info if isinstance(info, dict) else {}
        self._call("on_episode_step", env_index)

    def end(self, env_index: int) -> dict[str, float]:
        """See `EpisodeObserver`."""
        self._call("on_episode_end", env_index)
        metrics = self._episodes[env_index].custom_metrics
        for name, value in metrics.items():
            if not isinstance(value, Real | np.bool_):
                raise CallbackError(
                    f"custom_metrics of {type(self._callbacks).__name__}: {name!r} must be a number "
                    f"(got {type(value).__name__})"
                )
        return plain_numbers(metrics)

    def _call(self, hook: str, env_index: int) -> None:
        if hook in self._hooks:
            episode = self._episodes[env_index]
            where = f" in environment {env_index} at step {episode.length} of its episode"
            call_hook(self._callbacks, hook, where, worker=self._worker, env=self._envs[env_index], episode=episode)


class WorkerElsewhere:
    """What hooks in an environment's own process get for the worker, which is another process."""

    def __init__(self, worker_index: int) -> None:
        self.worker_index = worker_index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what pickle and others ask every object for
            raise AttributeError(name)
        raise AttributeError(
            f"worker.{name} is not there: the environment runs in a process of its own, where hooks get the "
            "environment, the episode and worker.worker_index; set env_isolation: none without timeouts and memory "
            "limit if a hook needs more of the worker"
        )


@dataclass(frozen=True)
class HooksInProcess:
    """Makes the hooks of an environment in its own process."""

    callbacks: str | type
    user_code: UserCode
    worker: WorkerElsewhere

    def __call__(self) -> EpisodeHooks:
        """The hooks, with an instance of the user's class."""
        callbacks = load_callbacks(self.callbacks, self.user_code)
        assert callbacks is not None
        return EpisodeHooks(callbacks, self.worker)
