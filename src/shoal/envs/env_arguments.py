"""How a class or function is called to make an environment: who gets the whole `env_config`, who gets keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from shoal.envs.context import INDICES, EnvContext
from shoal.envs.env_errors import error_text, pass_on_interrupts
from shoal.errors import ConfigError, EnvStartError, NoSuchItem, ShoalError

_WHOLE_CONFIG = ("config", "env_config", "ctx", "context")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def create(target: Callable[..., Any], name: str, ctx: EnvContext) -> Any:
    """Call a class or function the way its signature asks for.

    A first parameter without a default, or called config, env_config, ctx or context, gets the whole context. Otherwise
    the user's `env_config` is given as keywords, and the four indices to whoever names them.
    """
    args, keywords = _arguments(target, name, ctx)
    return guarded(lambda: target(*args, **keywords), name, ctx)


def guarded(make: Callable[[], Any], name: str, ctx: EnvContext) -> Any:
    """Run a constructor; its own error comes back as one sentence with its place in the user's code."""
    try:
        return make()
    except ShoalError:
        raise
    except BaseException as error:
        pass_on_interrupts(error)
        raise EnvStartError(f"env {name}: its constructor failed: {error_text(error)}{_lacking(error, ctx)}") from error


def _lacking(error: BaseException, ctx: EnvContext) -> str:
    """What to do about an entry of `env_config` that a constructor looks for in vain."""
    if not isinstance(error, KeyError) or isinstance(error, NoSuchItem):
        return ""
    key = error.args[0] if error.args else None
    return f"; does env_config lack {key!r}?" if isinstance(key, str) and key not in ctx else ""


def check_keywords(target: Callable[..., Any], name: str, keywords: Mapping[str, Any], also: Collection[str]) -> None:
    """Refuse an `env_config` key that the constructor does not take; `also` are keys that somebody else takes."""
    parameters = parameters_of(target)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = [key for key in [*accepted, *also] if key not in INDICES]
    hint = f"it takes {', '.join(takes)}" if takes else "it takes none at all, so leave env_config empty"
    problems = [
        f"env_config.{key}: env {name} takes no such argument; {hint}"
        for key in keywords
        if key not in accepted and key not in also
    ]
    if problems:
        raise ConfigError(problems)


def _arguments(target: Callable[..., Any], name: str, ctx: EnvContext) -> tuple[list[Any], dict[str, Any]]:
    user = dict(ctx)
    parameters = parameters_of(target)
    if parameters is None:
        return [], user
    named = [p for p in parameters if p.kind in (*_POSITIONAL, p.KEYWORD_ONLY)]
    has_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if parameters and _wants_context(parameters[0], user, has_keywords):
        lacking = [p.name for p in named if p is not parameters[0] and p.default is p.empty]
        if lacking:
            raise ConfigError(
                f"env {name}: its constructor also needs {', '.join(lacking)}; "
                "let it take one argument, the env_config, or give every argument by name in env_config"
            )
        return [ctx], {}
    check_keywords(target, name, user, ())
    given = {p.name: getattr(ctx, p.name) for p in named if p.name in INDICES} | user
    lacking = [p.name for p in named if p.default is p.empty and p.name not in given]
    if lacking:
        raise ConfigError(f"env {name}: its constructor needs {', '.join(lacking)}; put it into env_config")
    return [], given


def _wants_context(first: inspect.Parameter, user: Mapping[str, Any], has_keywords: bool) -> bool:
    if first.kind is first.VAR_POSITIONAL:
        return not has_keywords
    if first.kind not in _POSITIONAL:
        return False
    if first.name in _WHOLE_CONFIG or first.kind is first.POSITIONAL_ONLY:
        return True
    return first.default is first.empty and first.name not in (*user, *INDICES)


def parameters_of(target: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """What a class or function takes; None where it does not tell."""
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None  # compiled code may have no signature: then Python's own TypeError speaks
