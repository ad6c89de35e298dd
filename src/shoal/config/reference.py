"""Every key with its type, default and meaning, as rows for people; `schema` has the same for editors."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from shoal.config.experiment import Experiment, algorithm_class
from shoal.config.result_names import CUSTOM_METRICS, POLICY_REWARDS, result_names
from shoal.config.search_spaces import KINDS
from shoal.config.settings import AlgorithmConfig
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS
from shoal.config.vocabulary import EXPERIMENT_KEYS

_WORDS = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
    "null": "null",
}
_LIMITS = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))


TOPICS = {
    "env": "Environments",
    "num_workers": "Processes",
    "rollout_fragment_length": "Batches, observations and actions",
    "gamma": "Learning",
    "model": "Network",
    "explore": "Exploration",
    "evaluation_interval": "Evaluation",
    "seed": "Seeds and messages",
}
"""The first key of each topic, in the order of the common configuration."""


class KeyRow(NamedTuple):
    """One key of the reference."""

    key: str
    type: str
    default: str
    meaning: str


def config_rows(run: str) -> list[KeyRow]:
    """Every key that may stand under `config` for an algorithm; inner ones as `model.fcnet_hiddens`."""
    kind = algorithm_class(run)
    schema = kind.model_json_schema()
    return list(_rows(kind, schema, schema["$defs"], ""))


def topics(run: str) -> dict[str, list[KeyRow]]:
    """The keys of `config_rows` by what they are about; what only some algorithms have stands at the end."""
    found: dict[str, list[KeyRow]] = {}
    title = ""
    for row in config_rows(run):
        name = row.key.partition(".")[0]
        title = TOPICS.get(name, title) if name in AlgorithmConfig.model_fields else f"{run} itself"
        found.setdefault(title, []).append(row)
    return found


def experiment_rows() -> list[KeyRow]:
    """Every key that may stand beside `config` in an experiment."""
    rows = [row for row in _rows(Experiment, experiment_schema(), {}, "") if row.key in EXPERIMENT_KEYS]
    return [KeyRow("env", "text, or mapping", "", meanings(AlgorithmConfig)["env"]), *rows]


def stop_rows() -> list[KeyRow]:
    """Every name that may stand under `stop`."""
    known = result_names()
    rows = [KeyRow(f"stop.{name}", "number", "", meaning) for name, meaning in known.items()]
    own = "a number of your own: NAME_mean, NAME_min or NAME_max of what the last info of episodes, or a hook, holds"
    rows += [KeyRow(f"stop.{name}/POLICY", "number", "", meaning) for name, meaning in POLICY_REWARDS.items()]
    return [*rows, *(KeyRow(f"stop.{prefix}NAME", "number", "", own) for prefix in CUSTOM_METRICS)]


def sweep_rows() -> list[KeyRow]:
    """Every key of a sweep, and every scheduler and searcher with its options."""
    rows = [
        KeyRow("num_samples", "whole number >= 1", "1", "number of trials to draw, for each combination of the grids"),
        KeyRow("metric", "text", "episode_reward_mean", "the result by which trials are ranked; needs mode"),
        KeyRow("mode", "max | min", "max", "whether the largest or the smallest value is the best"),
        KeyRow(
            "seeds", "whole number >= 1", "1", "number of seeds for each configuration, which is ranked by its mean"
        ),
        KeyRow(
            "max_concurrent_trials",
            "whole number >= 1, or null",
            "null",
            "maximum number of trials at the same time; null: as many as fit",
        ),
    ]
    for key, table, default in (("scheduler", SCHEDULERS, "fifo"), ("search_alg", SEARCHERS, "random")):
        meaning = f"what {'stops trials early' if key == 'scheduler' else 'chooses values'}: a name, or {{type: ...}}"
        rows.append(KeyRow(key, " | ".join(table), default, meaning))
        for name, entry in table.items():
            needs = f"; needs pip install 'shoal-rl[{entry.extra}]'" if entry.extra else ""
            rows.append(KeyRow(f"{key}.{name}", "mapping", "", entry.meaning + needs))
            for option, one in entry.options.items():
                shown = _yaml(one.default) if one.is_given else one.default
                rows.append(KeyRow(f"{key}.{name}.{option}", one.type, shown, one.meaning))
    return rows


def space_rows() -> list[KeyRow]:
    """Every search that may stand in place of a value."""
    return [KeyRow(name, kind.form, "", kind.meaning) for name, kind in KINDS.items()]


@functools.cache
def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field of a model, on one line; that of a package's own may be missing."""
    found = dict.fromkeys(kind.model_fields, "")
    for parent in reversed(kind.__mro__):
        if issubclass(parent, BaseModel) and parent is not BaseModel:
            found.update(_docstrings(parent.__module__).get(parent.__name__, {}))
    return found


@functools.cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """The docstrings under the annotated names of each class of a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:  # an installed package may come without its source
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        names = found.setdefault(node.name, {})
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                names[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


def experiment_schema() -> dict[str, Any]:
    """The schema of an experiment without its algorithm's keys, which have a schema of their own."""
    schema = Experiment.model_json_schema()
    del schema["properties"]["config"]
    return schema


def inner_models(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields whose values are mappings with keys of our own."""
    return {
        name: field.annotation
        for name, field in kind.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _rows(kind: type[BaseModel], schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[KeyRow]:
    inner = inner_models(kind)
    for name, key_schema in schema["properties"].items():
        key, meaning = prefix + name, meanings(kind)[name]
        if name in inner:
            yield KeyRow(key, "mapping", "", meaning)
            yield from _rows(inner[name], definitions[inner[name].__name__], definitions, f"{key}.")
        else:
            yield KeyRow(key, _type(key_schema), _yaml(kind.model_fields[name].default), meaning)


def _type(schema: dict[str, Any]) -> str:
    """A JSON Schema in words: `whole number >= 1`, `tanh | relu`, `list of number, or null`."""
    if "anyOf" in schema:
        return ", or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(choice) for choice in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return ", or ".join(_with_limits(name, schema) for name in types)


def _with_limits(name: str, schema: dict[str, Any]) -> str:
    if name == "array":
        items = schema.get("items") or next(iter(schema.get("prefixItems", [])), None)
        return f"list of {_type(items)}" if isinstance(items, dict) and "type" in items else "list"
    limits = [f" {sign} {schema[key]:g}" for key, sign in _LIMITS if key in schema and abs(schema[key]) < 1e6]
    return _WORDS[name] + ",".join(limits if name in ("integer", "number") else [])


def _yaml(value: Any) -> str:
    """A default as it stands in a file."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)
