"""Wrappers around an environment, as a configuration and `--wrap` say them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from shoal.config.fields import free_mapping, text
from shoal.config.problems import got, printable
from shoal.errors import ConfigError

FORM = "[FlattenObservation, {FrameStackObservation: {stack_size: 4}}]"

_WRAP = re.compile(r"(?P<name>.+?)(?::(?P<args>[^\W\d]\w*\s*=.*))?", re.DOTALL)
_CLOSING = {"[": "]", "{": "}", "(": ")"}


def wrapper_list(value: Any) -> tuple[Any, ...]:
    """`[Name, {Name: {argument: value}}]`, checked: each a name or callable alone, or a mapping of it to arguments."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list such as {FORM}")
    found: list[Any] = []
    problems: list[str] = []
    for place, item in enumerate(value):
        try:
            source, args = source_and_args(item)
        except ValueError as error:
            problems.append(f"config.wrappers[{place}]: {error} {got(item)}")
        else:
            found.append({source: args} if args else source)
    if problems:
        raise PydanticCustomError("wrappers", "wrappers", {"problems": problems})
    return tuple(found)


def source_and_args(item: Any) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """What one item of the list names, and the arguments that it gives."""
    source: Any = item
    args: Any = None
    if isinstance(item, Mapping):
        if len(item) != 1:
            raise ValueError(f"must be one wrapper, as in {FORM}")
        ((source, args),) = item.items()
    if isinstance(source, functools.partial) and not source.args and args is None:
        source, args = source.func, source.keywords
    if isinstance(source, str):
        source = text(source)
    elif not callable(source):
        raise ValueError(f"must be a wrapper's name, or a mapping of it to its arguments, as in {FORM}")
    if args is not None and not isinstance(args, Mapping):
        raise ValueError(f"its arguments must be a mapping of names to values, as in {FORM}")
    return source, free_mapping(args or {})


def parse_wrap(words: str) -> Any:
    """`NAME` or `NAME:key=value,key=value` as an item of the list; values as in YAML."""
    from shoal.config.yaml_files import parse_value  # here, so that showing keys does not import a YAML parser

    match = _WRAP.fullmatch(words.strip())
    example = "write NAME or NAME:key=value,key=value, e.g. --wrap FrameStackObservation:stack_size=4"
    if match is None:
        raise ConfigError(f"--wrap {printable(words)}: {example}")
    args: dict[str, Any] = {}
    for part in _parts(match["args"] or ""):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier() or not value.strip():
            raise ConfigError(f"--wrap {printable(words)}: {example}")
        if key in args:
            raise ConfigError(f"--wrap {printable(words)}: {key} is given twice; leave one out")
        try:
            args[key] = parse_value(value)
        except ConfigError as error:
            raise ConfigError([f"--wrap {match['name']}: {key}: {problem}" for problem in error.problems]) from None
    return {match["name"]: args} if args else match["name"]


def _parts(words: str) -> list[str]:
    """The arguments between commas; those inside brackets and quotes belong to a value."""
    parts = [""]
    waiting: list[str] = []
    for sign in words:
        if sign == "," and not waiting:
            parts.append("")
            continue
        if waiting and sign == waiting[-1]:
            waiting.pop()
        elif sign in "\"'" and not (waiting and waiting[-1] in "\"'"):
            waiting.append(sign)
        elif sign in _CLOSING and not (waiting and waiting[-1] in "\"'"):
            waiting.append(_CLOSING[sign])
        parts[-1] += sign
    return [part for part in parts if part.strip()]


Wrappers = Annotated[
    Sequence[Any],
    PlainValidator(wrapper_list),
    WithJsonSchema({"type": "array", "items": {"type": ["string", "object"]}}),
]
