"""Environments written for Gym before 0.26, as they stand: `reset()` gives an observation, `step()` four values."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.envs.env_errors import notice_once
from shoal.errors import ConfigError, EnvStartError


def is_legacy(env: Any) -> bool:
    """Whether an environment needs the adapter, as far as one can tell without running it."""
    if not isinstance(env, gymnasium.Env):
        return True
    spaces_known = isinstance(env.observation_space, spaces.Space) and isinstance(env.action_space, spaces.Space)
    return not spaces_known or not _takes(env.unwrapped.reset, "seed")


class LegacyGymEnv(gymnasium.Env[Any, Any]):
    """An environment of old Gym, or of nobody's class, behind Gymnasium's interface."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = gymnasium_space(env.observation_space)
        self.action_space = gymnasium_space(env.action_space)
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._takes_seed = _takes(getattr(env, "unwrapped", env).reset, "seed")
        self.takes_options = _takes(getattr(env, "unwrapped", env).reset, "options")
        is_of_family = isinstance(getattr(env, "unwrapped", env), gymnasium.Env)
        self._can_seed = self._takes_seed or is_of_family or callable(getattr(env, "seed", None))
        # A class of the user's own may have all of Gymnasium's interface and not be of its family.
        self._is_told = False
        if self.observation_space is not env.observation_space or self.action_space is not env.action_space:
            self._tell()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Seed in whatever way the environment knows, reset, and give (obs, info)."""
        keywords: dict[str, Any] = {}
        if self._takes_seed:
            keywords["seed"] = seed
        elif seed is not None:
            self._seed(seed)
        if self.takes_options:
            keywords["options"] = options
        result = self.env.reset(**keywords)
        if not self._is_told and not _is_pair(result):
            self._tell()
        elif not self._is_told and not self._can_seed:
            notice_once(
                f"{type(self.env).__name__}.reset() takes no seed, so its episodes cannot be repeated exactly; "
                "write reset(self, *, seed=None, options=None)"
            )
        return _obs_and_info(result, self.observation_space)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, with `done` told apart into terminated and truncated."""
        result = self.env.step(action)
        if not self._is_told and len(result) == 4:
            self._tell()
        return _five_values(result)

    def render(self) -> Any:
        """Render as the environment does."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment, if it can be."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def __getattr__(self, name: str) -> Any:
        # Users' own methods (set_task, action_masks) stay within reach.
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def _tell(self) -> None:
        self._is_told = True
        notice_once(
            f"{type(getattr(self.env, 'unwrapped', self.env)).__name__} has the interface of old Gym; shoal adapts "
            "it (its step's `done` counts as terminated, or as truncated where info says TimeLimit.truncated)"
        )

    def _seed(self, seed: int) -> None:
        inner = getattr(self.env, "unwrapped", self.env)
        if callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)
        elif isinstance(inner, gymnasium.Env):
            # Gymnasium's own reset does nothing but seed np_random, which an old-style reset never does.
            gymnasium.Env.reset(inner, seed=seed)


class AnyForm(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of which only its first steps tell the form; wrappers around it see Gymnasium's."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, with what the environment has room for."""
        keywords: dict[str, Any] = {"seed": seed}
        if options is not None:
            keywords["options"] = options
        return _obs_and_info(self.env.reset(**keywords), self.observation_space)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; what has five values passes as it is."""
        result: Any = self.env.step(action)
        return _five_values(result) if len(result) == 4 else result


def _obs_and_info(result: Any, space: spaces.Space[Any]) -> tuple[Any, dict[str, Any]]:
    """What a reset of either form gives."""
    if _is_pair(result):
        # A Tuple space may hold (something, dict) itself: then the whole result is the observation.
        is_obs = isinstance(space, spaces.Tuple) and space.contains(result)
        return (result, {}) if is_obs else (result[0], result[1])
    return result, {}


def _is_pair(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)


def _five_values(result: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
    """What a step of either form gives."""
    if len(result) == 4:
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info
    obs, reward, terminated, truncated, info = result
    return obs, reward, terminated, truncated, info


def takes_options(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether `reset(options=...)` reaches the environment."""
    bare = env.unwrapped
    return bare.takes_options if isinstance(bare, LegacyGymEnv) else _takes(bare.reset, "options")


def gymnasium_space(space: Any) -> spaces.Space[Any]:
    """The Gymnasium space that equals an old Gym one, recognised by its class name and attributes."""
    if isinstance(space, spaces.Space):
        return space
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(np.asarray(space.low), np.asarray(space.high), tuple(space.shape), space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    if kind == "MultiBinary":
        return spaces.MultiBinary(np.asarray(space.n).tolist())
    if kind == "Dict":
        # Old Gym sorted the keys and Gymnasium keeps the order given: the order of the space itself is right for both.
        return spaces.Dict([(str(key), gymnasium_space(child)) for key, child in space.spaces.items()])
    if kind == "Tuple":
        return spaces.Tuple([gymnasium_space(child) for child in space.spaces])
    if space is None:
        raise EnvStartError("the environment's observation_space or action_space is None; set both in its constructor")
    raise ConfigError(
        f"{type(space).__module__}.{kind} is not a space that shoal can use; "
        "use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple of gymnasium.spaces"
    )


def _takes(function: Any, keyword: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
