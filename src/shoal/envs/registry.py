"""Environments that a program gives a name of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.errors import ConfigError

EnvCreator = Callable[..., Any]

_creators: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Let `env: name` mean `creator(env_config)`; a name given before is replaced."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"register_env: the name must be a non-empty text (got {name!r})")
    if not callable(creator):
        raise ConfigError(
            f"register_env: {name!r} needs a class or a function that makes the environment "
            f"(got {type(creator).__name__}); type register_env({name!r}, lambda config: MyEnv(config))"
        )
    _creators[name] = creator


def registered(name: str) -> EnvCreator | None:
    """The creator of that name, or None."""
    return _creators.get(name)


def registered_names() -> list[str]:
    """Every name given so far, in order."""
    return sorted(_creators)
