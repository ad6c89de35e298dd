"""What `--set KEY=VALUE` and the flags change in an experiment's tree."""

from __future__ import annotations

from typing import Any

from shoal.config.problems import got, printable
from shoal.config.vocabulary import key_hint
from shoal.errors import ConfigError

Override = tuple[str, Any]
"""A dotted path into an experiment's tree, and the value to put there."""


def parse_override(text: str) -> Override:
    """`config.lr=1e-3` as a path and a value."""
    from shoal.config.yaml_files import parse_value  # here, so that showing keys does not import a YAML parser

    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path.isprintable() or not all(path.split(".")):
        raise ConfigError(f"--set {printable(text)}: write KEY=VALUE, e.g. --set config.lr=1e-3")
    try:
        return path, parse_value(value)
    except ConfigError as error:
        raise ConfigError([f"--set {path}: {problem}" for problem in error.problems]) from None


def set_in(tree: dict[str, Any], path: str, value: Any, known: list[str]) -> None:
    """Put `value` at a dotted path of an experiment's tree, in place; `known` are the paths of all keys."""
    # What stands under `stop` is one name, dots and all.
    names = path.split(".", 1) if path.startswith("stop.") else path.split(".")
    if names[0] not in {place.partition(".")[0] for place in known}:
        raise ConfigError(f"{path}: unknown key{_hint(path, known)}")
    here = tree
    for depth, name in enumerate(names[:-1], start=1):
        if here.get(name) is None:
            here[name] = {}
        inner = here[name]
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {'.'.join(names[:depth])} has no keys of its own {got(inner)}")
        here = inner
    here[names[-1]] = value


def _hint(path: str, known: list[str]) -> str:
    if f"config.{path}" in known:
        return f"; did you mean config.{path}?"
    return key_hint(path, known)
