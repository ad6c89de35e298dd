"""Wrappers that a configuration puts around every environment: Gymnasium's by name, and the user's own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers as gymnasium_wrappers
from gymnasium.vector import VectorEnv, VectorWrapper

from shoal.config.wrappers import source_and_args
from shoal.envs.env_arguments import parameters_of
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.envs.importing import INSTALLED, UserCode
from shoal.errors import ConfigError, EnvStartError, ShoalError

REFUSED = {
    "Autoreset": "shoal starts the next episode itself",
    "HumanRendering": "set render_env: true instead",
    "RecordVideo": "set record_env: true instead, or type shoal evaluate RUN --video FILE",
    "NormalizeObservation": (
        "every environment would have statistics of its own, which no checkpoint keeps; "
        "set observation_filter: MeanStdFilter instead"
    ),
    "NormalizeReward": (
        "every environment would have statistics of its own, which no checkpoint keeps; normalize_rewards, which is "
        "on by default, has one for all"
    ),
    "NumpyToTorch": "shoal takes NumPy arrays, whatever computes the network",
    "JaxToTorch": "shoal takes NumPy arrays; JaxToNumpy gives them",
}
"""Gymnasium's wrappers that would break what shoal does itself, and what to do instead."""

_RENAMED = {
    "FrameStack": "FrameStackObservation",
    "GrayScaleObservation": "GrayscaleObservation",
    "PixelObservationWrapper": "AddRenderObservation",
}


@dataclass(frozen=True)
class Wrapping:
    """One wrapper to be put around an environment, here or in another process; `place` is its place in the list."""

    place: int
    source: str | Callable[..., Any]
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Where it stands in the configuration."""
        return f"config.wrappers[{self.place}]"

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return self.source if isinstance(self.source, str) else getattr(self.source, "__name__", repr(self.source))

    def put_around(self, env: gymnasium.Env[Any, Any], user_code: UserCode) -> gymnasium.Env[Any, Any]:
        """The environment with the wrapper around it."""
        target = self.target(user_code)
        args = self._arguments(target, user_code)
        try:
            with user_code.importable():
                wrapped = target(env, **args)
        except ShoalError:
            raise
        except BaseException as error:
            pass_on_interrupts(error)
            raise EnvStartError(f"{self.key}: {self.name} cannot wrap the environment: {error_text(error)}") from error
        if not isinstance(wrapped, gymnasium.Env):
            raise EnvStartError(f"{self.key}: {self.name} must return a gymnasium.Env (got {type(wrapped).__name__})")
        return wrapped

    def check(self, user_code: UserCode) -> None:
        """Refuse a name that nobody has, a wrapper that would do harm, and arguments that it does not take."""
        if reason := REFUSED.get(str(self.source)):
            raise self._refusal(reason)
        target = self.target(user_code)
        for kind in getattr(target, "__mro__", (target,)):
            if getattr(kind, "__module__", "").startswith("gymnasium.wrappers.") and kind.__name__ in REFUSED:
                raise self._refusal(REFUSED[kind.__name__])
        if isinstance(target, type) and issubclass(target, VectorEnv | VectorWrapper):
            raise self._refusal("it is for a batch of environments, and shoal wraps each one by itself")
        parameters = parameters_of(target)
        if parameters is None:
            return
        own = parameters[1:]
        form = f"{self.name} takes {_written(own)}" if own else f"{self.name} takes no arguments"
        named = {p.name: p for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in own)
        unknown = [key for key in self.args if key not in named and not takes_any]
        lacking = [key for key, p in named.items() if p.default is p.empty and key not in self.args]
        if unknown:
            raise ConfigError(f"{self.key}: there is no argument {', '.join(unknown)}; {form}")
        if lacking:
            raise ConfigError(f"{self.key}: {', '.join(lacking)} is missing; {form}")

    def target(self, user_code: UserCode) -> Callable[..., Any]:
        """The class or function behind the name."""
        if not isinstance(self.source, str):
            return self.source
        name, colon, value = self.source.partition(":")
        if colon and not value.isidentifier() and (known := _gymnasium_wrapper(name)) is not None:
            raise ConfigError(f"{self.key}: a value needs the name of its argument; {_named_value(name, known, value)}")
        if "." in self.source or ":" in self.source:
            found = user_code.load_named(self.key, self.source)
        else:
            found = _gymnasium_wrapper(self.source)
            if found is None:
                raise ConfigError(f"{self.key}: Gymnasium has no wrapper {self.source!r}; {_offer(self.source)}")
        if not callable(found):
            raise ConfigError(f"{self.key}: {self.source} is of type {type(found).__name__}; name a wrapper class")
        return found  # type: ignore[no-any-return]

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.key}: {self.name} cannot be used here: {reason}")

    def _arguments(self, target: Callable[..., Any], user_code: UserCode) -> dict[str, Any]:
        """The arguments in the types that are asked for: YAML has neither tuples nor arrays nor functions."""
        kinds = {p.name: str(p.annotation) for p in parameters_of(target) or []}
        given: dict[str, Any] = {}
        for key, value in self.args.items():
            kind = kinds.get(key, "")
            if isinstance(value, list) and "ndarray" in kind:
                value = np.array(value, np.float32)
            elif isinstance(value, list) and "tuple" in kind:
                value = tuple(value)
            elif isinstance(value, str) and "Callable" in kind:
                value = user_code.load_named(f"{self.key}: {self.name}: {key}", value)
            given[key] = value
        return given


def wrappings(items: Sequence[Any], user_code: UserCode = INSTALLED) -> tuple[Wrapping, ...]:
    """What a configuration's `wrappers` mean, in their order, after a look at each."""
    found = tuple(Wrapping(place, *source_and_args(item)) for place, item in enumerate(items))
    problems: list[str] = []
    for wrapping in found:
        try:
            wrapping.check(user_code)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found


def wrapper_names() -> list[str]:
    """The names of Gymnasium's wrappers that may be used."""
    return [name for name in gymnasium_wrappers.__all__ if name not in REFUSED and name != "vector"]


def _gymnasium_wrapper(name: str) -> Any:
    if name not in gymnasium_wrappers.__all__ or name == "vector":
        return None
    try:
        return getattr(gymnasium_wrappers, name)
    except ImportError as error:
        raise ConfigError(f"wrapper {name}: {error}; install that package") from error


def _named_value(name: str, target: Callable[..., Any], value: str) -> str:
    """How to write `TimeLimit:5`."""
    own = (parameters_of(target) or [])[1:]
    if not own:
        return f"{name} takes no arguments"
    return f"write --wrap {name}:{own[0].name}={value}, or {{{name}: {{{own[0].name}: {value}}}}} in a file"


def _offer(name: str) -> str:
    by_spelling = {known.lower(): known for known in wrapper_names()}
    near = difflib.get_close_matches(name.lower(), by_spelling, n=3)
    names = [by_spelling[spelling] for spelling in near]
    if name in _RENAMED:
        names = [_RENAMED[name]]
    if names:
        return f"did you mean {', '.join(names)}?"
    return (
        f"your own is named my_module:MyWrapper or my_file.py:MyWrapper, Gymnasium's are {', '.join(wrapper_names())}"
    )


def _written(parameters: Sequence[inspect.Parameter]) -> str:
    """The parameters as a user would type them, without types."""
    shown = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        plain = parameter.replace(annotation=parameter.empty)
        is_function = plain.default is not plain.empty and callable(plain.default)
        shown.append(f"{plain.name}=..." if is_function else str(plain))
    return ", ".join(shown)
