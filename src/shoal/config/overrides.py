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
    path = full_path(path, known)
    # What stands under `stop` is one name, dots and all.
    names = path.split(".", 1) if path.startswith("stop.") else path.split(".")
    here = tree
    for depth, name in enumerate(names[:-1], start=1):
        if here.get(name) is None:
            here[name] = {}
        inner = here[name]
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {'.'.join(names[:depth])} has no keys of its own {got(inner)}")
        here = inner
    here[names[-1]] = value


def full_path(path: str, known: list[str]) -> str:
    """`config.lr` for `lr`: a key inside `config` needs no more than its own name, if only one key has it."""
    first, dot, rest = path.partition(".")
    if first in {place.partition(".")[0] for place in known}:
        return path
    if f"config.{first}" in known:
        return f"config.{path}"
    meant = [place for place in known if place.endswith(f".{first}")]
    if len(meant) > 1:
        raise ConfigError(f"{path}: several keys have that name; write {' or '.join(meant)}")
    if meant:
        return f"{meant[0]}{dot}{rest}"
    hint = key_hint(path, known) or key_hint(f"config.{path}", known)
    raise ConfigError(f"{path}: unknown key{hint}")
