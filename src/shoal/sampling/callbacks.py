"""Hooks: a user's own code at the events of a run, on workers and in the driver."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass, field
from typing import Any

from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.importing import UserCode
from shoal.errors import CallbackError, ConfigError

EPISODE_HOOKS = ("on_episode_start", "on_episode_step", "on_episode_end")

HOOKS = {
    **dict.fromkeys(EPISODE_HOOKS, ("worker", "env", "episode")),
    "on_train_result": ("trainer", "result"),
    "on_evaluate_end": ("trainer", "evaluation_metrics"),
    "on_checkpoint": ("trainer", "checkpoint"),
}
"""Every hook, with the keywords it is called with."""


@dataclass
class LiveEpisode:
    """An episode as hooks see it; what they write into `custom_metrics` becomes the run's `custom_metrics`."""

    env_index: int  # over all workers
    task: Any = None  # of a curriculum
    options: dict[str, Any] = field(default_factory=dict)  # drawn for its reset
    env_config: dict[str, Any] = field(default_factory=dict)  # drawn for its environment
    length: int = 0
    total_reward: float = 0.0
    last_obs: Any = None
    last_action: Any = None
    last_reward: float = 0.0
    last_info: dict[str, Any] = field(default_factory=dict)
    user_data: dict[str, Any] = field(default_factory=dict)  # for whatever hooks keep from one to the next
    custom_metrics: dict[str, float] = field(default_factory=dict)


class DefaultCallbacks:
    """The hooks, which do nothing; a subclass overrides those it wants.

    The driver has one instance and each worker another, or each environment that has a process of its own. Hooks of
    episodes run where the environment is, in evaluation too; the others in the driver. When a run is resumed, the
    episodes that are replayed to where they were call `on_episode_start` and `on_episode_step` again, so that what
    these keep in the episode comes back.
    """

    def on_episode_start(self, *, worker: Any, env: Any, episode: LiveEpisode, **kwargs: Any) -> None:
        """An environment was reset."""

    def on_episode_step(self, *, worker: Any, env: Any, episode: LiveEpisode, **kwargs: Any) -> None:
        """An environment took a step."""

    def on_episode_end(self, *, worker: Any, env: Any, episode: LiveEpisode, **kwargs: Any) -> None:
        """An episode ended, and its environment is not reset yet; one that a failure cuts short has no end."""

    def on_train_result(self, *, trainer: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """A training iteration ended; what is added to the result is reported."""

    def on_evaluate_end(self, *, trainer: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        """An evaluation ended; what is added to its metrics is reported."""

    def on_checkpoint(self, *, trainer: Any, checkpoint: str, **kwargs: Any) -> None:
        """A checkpoint was written to this folder."""


def load_callbacks(source: str | type | None, user_code: UserCode) -> DefaultCallbacks | None:
    """An instance of the user's class; None if there is none."""
    if source is None:
        return None
    kind = callbacks_class(source, user_code)
    try:
        return kind()
    except BaseException as error:
        pass_on_interrupts(error)
        raise ConfigError(f"config.callbacks: {kind.__name__}() failed: {error_text(error)}") from error


def callbacks_class(source: str | type, user_code: UserCode) -> type[DefaultCallbacks]:
    """The user's class, after a look at its hooks."""
    kind = user_code.load_named("config.callbacks", source) if isinstance(source, str) else source
    if not isinstance(kind, type) or not issubclass(kind, DefaultCallbacks):
        what = kind.__name__ if isinstance(kind, type) else f"a {type(kind).__name__}"
        raise ConfigError(f"config.callbacks: must be a subclass of shoal.DefaultCallbacks ({what} is none)")
    problems = []
    for name in dir(kind):
        problem = _problem(kind, name) if name.startswith("on_") else None
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    return kind


def overridden(callbacks: DefaultCallbacks) -> list[str]:
    """The hooks that the user's class has a method for."""
    return [name for name in HOOKS if getattr(type(callbacks), name) is not getattr(DefaultCallbacks, name)]


def call_hook(callbacks: DefaultCallbacks, name: str, where: str = "", **given: Any) -> None:
    """Call a hook; what it raises is told with its name and its place in the user's code."""
    try:
        getattr(callbacks, name)(**given)
    except BaseException as error:
        pass_on_interrupts(error)
        hook = f"{type(callbacks).__name__}.{name}"
        raise CallbackError(f"the hook {hook} failed{where}: {error_text(error)}") from error


def _problem(kind: type, name: str) -> str | None:
    """Why a method cannot be a hook."""
    if name not in HOOKS:
        near = difflib.get_close_matches(name, HOOKS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(HOOKS)}"
        return f"config.callbacks: {kind.__name__}.{name} is not a hook that shoal calls; {hint}"
    try:
        inspect.signature(getattr(kind, name)).bind(None, **dict.fromkeys(HOOKS[name]))
    except TypeError as error:
        takes = ", ".join(HOOKS[name])
        return (
            f"config.callbacks: {kind.__name__}.{name} is called with {takes} as keywords, and {error}; "
            f"write def {name}(self, *, {takes}, **kwargs)"
        )
    return None
