"""Cases: what episodes begin with, as the rows of a CSV file, for training (`randomize.cases`) and for evaluation."""

from __future__ import annotations

import copy
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.fields import whole
from shoal.errors import ConfigError

MOST_SHOWN = 5


@dataclass(frozen=True)
class Case:
    """What one episode begins with; None: as usual."""

    env_config: dict[str, Any] | None = None  # entries that replace the environment's own
    options: dict[str, Any] | None = None  # of reset
    seed: int | None = None


@dataclass(frozen=True)
class Cases:
    """The rows of a file, as they stand there and as what an episode begins with."""

    columns: tuple[str, ...]
    rows: list[dict[str, str]]
    cases: list[Case]


def read_cases(path: Path, env_config: Mapping[str, Any]) -> Cases:
    """The cases of a CSV file with a header; all problems are reported at once.

    `env_config.NAME` is a value of the environment's env_config (dots lead into nested ones), `options.NAME` one of
    `reset(options=...)`, `seed` the seed of the reset, and `case` a name of one's own. An empty cell says nothing.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", restval=None)
            columns = tuple(name.strip() for name in reader.fieldnames or ())
            reader.fieldnames = list(columns)
            numbered = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    problems = _header_problems(columns)
    if not numbered:
        problems.append("it has no rows; write a header such as options.x0,options.v0 and one row per episode")
    cases: list[Case] = []
    header_is_sound = not problems
    for number, row in numbered:
        if "" in row or None in row.values():
            problems.append(f"line {number} has a different number of cells than the header has columns")
        elif header_is_sound:
            try:
                cases.append(_case(row, env_config))
            except (ValueError, ConfigError) as error:
                problems.append(f"line {number}: {error}")
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems[:MOST_SHOWN]])
    return Cases(columns, [row for _, row in numbered], cases)


def _header_problems(columns: Sequence[str]) -> list[str]:
    problems = []
    for name in columns:
        problem = _column_problem(name)
        if problem is not None:
            problems.append(problem)
    for name in dict.fromkeys(columns):
        if columns.count(name) > 1:
            problems.append(f"column {name!r} occurs twice")
    return problems


def _column_problem(name: str) -> str | None:
    if name in ("seed", "case"):
        return None
    if found := set(name) & set(";\t|"):
        return f"column {name!r}: columns are separated by commas, not by {found.pop()!r}"
    place, dot, key = name.partition(".")
    if place in ("env_config", "options") and dot and all(key.split(".")):
        return None
    if not name:
        return "a column has no name"
    return f"column {name!r} has an unknown meaning; write env_config.{name}, options.{name}, seed or case"


def _case(row: Mapping[str, str], env_config: Mapping[str, Any]) -> Case:
    from shoal.config.yaml_files import parse_value, plain_scalar  # here, so that who has no cases needs no YAML

    entries: dict[str, Any] = {}
    options: dict[str, Any] = {}
    seed = None
    for name, cell in row.items():
        text = cell.strip()
        if name == "case" or not text:
            continue
        value = parse_value(text) if text[0] in "[{" else plain_scalar(text)
        if name == "seed":
            try:
                seed = whole(value)
            except ValueError as error:
                raise ValueError(f"seed {error} (got {text})") from None
            if seed < 0:
                raise ValueError(f"seed must be at least 0 (got {text})")
            continue
        place, _, key = name.partition(".")
        path = key.split(".")
        if place == "env_config" and len(path) > 1 and path[0] not in entries:
            entries[path[0]] = copy.deepcopy(env_config.get(path[0], {}))
        _put(entries if place == "env_config" else options, path, value, name)
    return Case(entries or None, options or None, seed)


def _put(tree: dict[str, Any], path: list[str], value: Any, name: str) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ValueError(f"{name} leads into {key}, which is not a mapping")
    tree[path[-1]] = value
