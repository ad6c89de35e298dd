"""What `env` may be: a name, a program's description, a class or a callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from shoal.config.fields import text
from shoal.config.program_envs import checked_program


def env_source(value: Any) -> str | dict[str, Any] | Callable[..., Any] | None:
    """A name or path of an environment, a program's description, a class or a callable."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return checked_program(value)
    if type(value).__name__ == "EnvSpec" and hasattr(value, "entry_point"):
        return _registered_id(value)
    if hasattr(value, "reset") and hasattr(value, "step"):
        raise ValueError(f"is a single environment that is already made, but several are needed; {_how_to_make(value)}")
    raise ValueError("must be an environment's id (CartPole-v1), module:Class, file.py:Class, a class or a callable")


def _registered_id(spec: Any) -> str:
    """The id of what `gymnasium.spec` gives; one that was changed since cannot be written to a file."""
    import gymnasium

    registered = gymnasium.registry.get(spec.id)
    if registered == spec:
        return str(spec.id)
    usual = registered.kwargs if registered is not None else {}
    own = {key: value for key, value in spec.kwargs.items() if usual.get(key) != value}
    raise ValueError(f"differs from {spec.id} as it is registered; write env={spec.id!r} and env_config={own!r}")


def _how_to_make(env: Any) -> str:
    """The line that makes environments like one that a program has made."""
    spec, kind = getattr(env, "spec", None), type(getattr(env, "unwrapped", env)).__name__
    if spec is not None and getattr(spec, "additional_wrappers", None):
        return f"give a function, env=lambda config: {type(env).__name__}(gymnasium.make({spec.id!r}))"
    if spec is not None:
        return f"write env={spec.id!r}"
    return f"give the class, env={kind}, or a function that makes one, env=lambda config: {kind}(...)"


EnvSource = Annotated[
    str | dict[str, Any] | Callable[..., Any] | None,
    PlainValidator(env_source),
    WithJsonSchema({"type": ["string", "object", "null"]}),
]
