"""Batches of environments of other libraries as Gymnasium's `VectorEnv`: EnvPool's pools, Stable-Baselines3's VecEnvs.

Both are recognised by what they have; neither package is imported for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.envs.spaces import Space
from shoal.errors import ConfigError

_POOL_COUNTERS = ("env_id", "elapsed_step", "terminated")  # in a pool's info, and not worth a result


def as_vector_env(env: Any, name: str) -> Any:
    """The environment itself, or the batch that it is behind Gymnasium's contract; what cannot be trained is refused.

    `name` is what the user calls it.
    """
    if isinstance(env, VectorEnv):
        return PoolVector(env, name) if _is_pool(env) else env
    return BaselinesVector(env, name) if _is_vec_env(env) else env


class PoolVector(VectorEnv[Any, Any, Any]):
    """A pool of EnvPool with batched spaces and with a reset that takes seeds.

    A pool has the seeds that it was made with. So a reset with seeds makes it again; one without seeds does not.
    """

    takes_seeds = True

    def __init__(self, pool: Any, name: str) -> None:
        try:
            refuse_players(pool.config["max_num_players"], name)
        except ConfigError:
            pool.close()
            raise
        self._pool = pool
        self.num_envs = int(pool.num_envs)
        self.metadata = dict(pool.metadata)
        self.render_mode = pool.render_mode
        own_spaces = sound_spaces(lambda: (pool.observation_space, pool.action_space))
        self.single_observation_space, self.single_action_space = own_spaces
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See `VectorEnv`; `options` are EnvPool's own."""
        if seed is not None:
            self._seed([seed + row for row in range(self.num_envs)] if isinstance(seed, int) else list(seed))
        obs, info = self._pool.reset(options=options)
        return obs, _without_counters(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See `VectorEnv`."""
        obs, rewards, terminated, truncated, info = self._pool.step(actions)
        return obs, rewards, terminated, truncated, _without_counters(info)

    def render(self) -> Any:
        """See `VectorEnv`."""
        return self._pool.render()

    def close_extras(self, **_: Any) -> None:
        """See `VectorEnv`."""
        self._pool.close()

    def _seed(self, seeds: list[Any]) -> None:
        """Make the pool again, with a seed for each environment."""
        old = self._pool
        spec = type(old.spec)
        settings = {**old.config, "seed": 0, "env_seed": [int(seed) % 2**31 for seed in seeds]}
        self._pool = type(old)(spec(spec.gen_config(**settings)))
        for attribute, value in vars(old).items():
            if attribute.startswith(("_render_", "_gym_")):  # how it draws, and its spaces
                setattr(self._pool, attribute, value)
        old.close()


def refuse_players(count: int, name: str) -> None:
    """Refuse an environment of EnvPool that several players share."""
    if count > 1:
        raise ConfigError(
            f"env {name}: it has {count} players, and shoal trains one agent; name an environment of one player"
        )


def sound_spaces(spaces_of: Callable[[], tuple[Space, Space]]) -> tuple[Space, Space]:
    """The spaces of EnvPool, which it makes with warnings of its own about bounds in double precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observations, actions = spaces_of()
        return _sound(observations), _sound(actions)


def _sound(space: Space) -> Space:
    """A space whose bounds may be the smallest and the largest number of C++ where there are none."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _sound(part) for key, part in space.items()})
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits = [np.finfo(kind) for kind in (np.float32, np.float64)]
    has_low = ~np.isin(space.low, [number for limit in limits for number in (limit.tiny, limit.min)])
    has_high = ~np.isin(space.high, [limit.max for limit in limits])
    kind: Any = space.dtype
    return spaces.Box(np.where(has_low, space.low, -np.inf), np.where(has_high, space.high, np.inf), dtype=kind)


class BaselinesVector(VectorEnv[Any, Any, Any]):
    """A VecEnv as Stable-Baselines3 has it: it resets in the step that ends an episode, and gives a list of infos."""

    def __init__(self, vec_env: Any, name: str) -> None:
        _refuse_normalizing(vec_env, name)
        self._vec_env = vec_env
        self.num_envs = int(vec_env.num_envs)
        self.metadata = {**(getattr(vec_env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = getattr(vec_env, "render_mode", None)
        self.single_observation_space, self.single_action_space = vec_env.observation_space, vec_env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See `VectorEnv`; a VecEnv takes one seed, from which those of its environments follow."""
        if options and hasattr(self._vec_env, "set_options"):
            self._vec_env.set_options(options)
        if seed is not None and hasattr(self._vec_env, "seed"):
            self._vec_env.seed(seed if isinstance(seed, int) else seed[0])
        return self._vec_env.reset(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See `VectorEnv`."""
        obs, rewards, done, infos = self._vec_env.step(actions)
        ended = np.asarray(done, bool)
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & ended
        told: dict[str, Any] = {}
        if ended.any():
            told["final_obs"] = np.empty(self.num_envs, object)
            for row in np.flatnonzero(ended):
                told["final_obs"][row] = infos[row].get("terminal_observation")
            told["final_info"] = _columns(infos, ended)
        return obs, np.asarray(rewards), ended & ~truncated, truncated, told

    def render(self) -> Any:
        """See `VectorEnv`."""
        return self._vec_env.render()

    def close_extras(self, **_: Any) -> None:
        """See `VectorEnv`."""
        self._vec_env.close()


def _is_pool(env: Any) -> bool:
    return all(hasattr(env, name) for name in ("send", "recv", "async_reset", "config"))


def _is_vec_env(env: Any) -> bool:
    return all(hasattr(env, name) for name in ("step_async", "step_wait", "num_envs", "observation_space"))


def _refuse_normalizing(vec_env: Any, name: str) -> None:
    """A VecNormalize that learns has statistics of its own, which would differ between workers."""
    layer = vec_env
    while layer is not None:
        if hasattr(layer, "obs_rms") and hasattr(layer, "ret_rms") and getattr(layer, "training", True):
            vec_env.close()
            raise ConfigError(
                f"env {name}: leave out VecNormalize, whose statistics would differ between workers and be in no "
                "checkpoint; observation_filter: MeanStdFilter does the same for observations, and normalize_rewards, "
                "which is on by default, for rewards"
            )
        layer = getattr(layer, "venv", None)


def _without_counters(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in info.items() if name not in _POOL_COUNTERS}


def _columns(infos: Sequence[Mapping[str, Any]], ended: NDArray[np.bool_]) -> dict[str, Any]:
    """The numbers in the infos of episodes that have ended, as arrays over the rows, each with a mask of who has it."""
    columns: dict[str, Any] = {}
    for row in np.flatnonzero(ended).tolist():
        for key, value in infos[row].items():
            if np.ndim(value) or not isinstance(value, int | float | np.number | np.bool_):
                continue
            if key == "TimeLimit.truncated":
                continue
            columns.setdefault(key, np.zeros(len(infos)))[row] = value
            columns.setdefault(f"_{key}", np.zeros(len(infos), bool))[row] = True
    return columns
