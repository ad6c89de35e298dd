"""A vector of environments whose episodes call the user's hooks. Without hooks, the plain vector is used instead."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.vector import PythonVector, Steps, plain_numbers
from shoal.errors import CallbackError
from shoal.sampling.callbacks import DefaultCallbacks, LiveEpisode, call_hook, overridden


class HookedVector(PythonVector):
    """Gymnasium environments in this process, with the hooks of their episodes; `worker` is what these get."""

    def __init__(self, callbacks: DefaultCallbacks, worker: Any, *args: Any, **kwargs: Any) -> None:
        self._callbacks, self._worker = callbacks, worker
        self._hooks = overridden(callbacks)
        self._live: dict[int, LiveEpisode] = {}
        super().__init__(*args, **kwargs)

    def _reset(self, row: int, seeded: bool, task: Any) -> Any:
        first = super()._reset(row, seeded, task)
        drawn = self._drawn[row]
        self._live[row] = LiveEpisode(
            self._first_index + row, self._tasks[row], drawn.options, drawn.env_config, last_obs=first
        )
        self._call("on_episode_start", row)
        return first

    def _go_on(
        self, steps: Steps, ended: NDArray[np.bool_], active: NDArray[np.bool_] | None, decoded: Sequence[Any]
    ) -> None:
        stepped = ended if "on_episode_step" not in self._hooks else np.ones_like(ended) if active is None else active
        observations, _, _, _, infos = self._columns
        for row in stepped.nonzero()[0].tolist():
            if row not in steps.failed:
                self._note(row, decoded[row], observations[row], float(steps.rewards[row]), infos[row])
        super()._go_on(steps, ended, active, decoded)

    def _followed(self, row: int, action: Any, result: tuple[Any, ...]) -> None:
        obs, reward, _, _, info = result
        self._note(row, action, obs, float(reward), info)

    def _note(self, row: int, action: Any, obs: Any, reward: float, info: Any) -> None:
        episode = self._live[row]
        episode.length, episode.total_reward = int(self._lengths[row]), float(self._rewards[row])
        episode.last_obs, episode.last_action, episode.last_reward = obs, action, reward
        episode.last_info = info if isinstance(info, dict) else {}
        self._call("on_episode_step", row)

    def _metrics(self, row: int) -> dict[str, float]:
        self._call("on_episode_end", row)
        own = self._live[row].custom_metrics
        for name, value in own.items():
            if not isinstance(value, Real | np.bool_):
                raise CallbackError(
                    f"custom_metrics of {type(self._callbacks).__name__}: {name!r} must be a number "
                    f"(got {type(value).__name__})"
                )
        return {**super()._metrics(row), **plain_numbers(own)}

    def _call(self, hook: str, row: int) -> None:
        if hook in self._hooks:
            episode = self._live[row]
            where = f" in environment {episode.env_index} at step {episode.length} of its episode"
            call_hook(self._callbacks, hook, where, worker=self._worker, env=self.envs[row], episode=episode)
