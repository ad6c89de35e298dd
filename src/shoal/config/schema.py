"""The JSON Schema (draft-07) of experiment files, for editors: completion, meanings and red lines while typing.

`experiments.schema.json` beside this module is what `file_schema` gives for shoal's own algorithms; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from shoal.config.algorithms import BUILT_IN, RLLIB
from shoal.config.experiment import algorithm_class
from shoal.config.reference import experiment_schema, inner_models, meanings, sweep_rows
from shoal.config.result_names import OPEN_NAMES, result_names
from shoal.config.search_spaces import KINDS
from shoal.config.settings import NULL_IS_DEFAULT
from shoal.config.sweep_options import SCHEDULERS, SEARCHERS

DRAFT = "http://json-schema.org/draft-07/schema#"
TITLE = "Experiments and sweeps of shoal"
SEARCH = {"$ref": "#/definitions/Search"}

Schema = dict[str, Any]


def schema_text(algorithms: Iterable[str] = ()) -> str:
    """The schema as the text of a file."""
    return json.dumps(file_schema(algorithms), indent=1) + "\n"


def file_schema(algorithms: Iterable[str] = ()) -> Schema:
    """The schema of a file of experiments and sweeps; `algorithms` are those of packages, besides shoal's own."""
    definitions: dict[str, Schema] = {"Search": _search_schema()}
    own = [*BUILT_IN, *(name for name in algorithms if name not in BUILT_IN)]
    places = {name: _add_config(name, definitions) for name in own}
    places |= dict.fromkeys(RLLIB, _add_config(next(iter(RLLIB)), definitions))
    definitions["experiment"] = _experiment(places, definitions)
    return {
        "$schema": DRAFT,
        "title": TITLE,
        "description": "Each experiment has its name on top and its keys under it.",
        "type": "object",
        "additionalProperties": {"$ref": "#/definitions/experiment"},
        "definitions": definitions,
    }


def _experiment(places: dict[str, str], definitions: dict[str, Schema]) -> Schema:
    """The schema of one experiment, whose `config` is that of its algorithm."""
    from shoal.config.experiment import Experiment

    properties: dict[str, Schema] = _described(Experiment, experiment_schema())["properties"]
    del properties["name"]
    first = next(iter(places))
    properties["run"] = {
        "description": properties["run"]["description"],
        "anyOf": [{"enum": list(places)}, SEARCH],
        "default": first,
    }
    properties["stop"] = {
        "type": ["object", "null"],
        "description": properties["stop"]["description"],
        "properties": {
            **{name: {"type": "number", "description": known} for name, known in result_names().items()},
            "time_total_s": {"type": ["number", "string"], "description": result_names()["time_total_s"]},
        },
        "patternProperties": {f"^{prefix}.": {"type": "number"} for prefix in OPEN_NAMES},
        "additionalProperties": False,
    }
    properties["env"] = definitions[places[first]]["properties"]["env"]
    properties["config"] = {"description": "The algorithm's own keys.", "type": ["object", "null"]}
    properties |= _sweep_schema()
    by_run = [
        {
            "if": {"properties": {"run": {"const": run}}, "required": ["run"]},
            "then": {"properties": {"config": {"$ref": f"#/definitions/{place}"}}},
        }
        for run, place in places.items()
    ]
    default = {
        "if": {"not": {"required": ["run"]}},
        "then": {"properties": {"config": {"$ref": f"#/definitions/{places[first]}"}}},
    }
    return {
        "type": "object",
        "properties": {name: _as_draft_07(key) for name, key in properties.items()},
        "additionalProperties": False,
        "allOf": [default, *by_run],
    }


def _add_config(run: str, definitions: dict[str, Schema]) -> str:
    """Add the keys of an algorithm to the definitions; the name of theirs."""
    kind = algorithm_class(run)
    schema = kind.model_json_schema()
    found = _keys(kind, schema, schema["$defs"], definitions)
    is_reference = inner_models(kind)
    keys = {name: key if name in is_reference else _shared(name, key, definitions) for name, key in found.items()}
    place = f"config_{run.replace(':', '_')}"
    definitions[place] = {"type": ["object", "null"], "properties": keys, "additionalProperties": False}
    return place


def _keys(
    kind: type[BaseModel], schema: Schema, models: dict[str, Schema], definitions: dict[str, Schema]
) -> dict[str, Schema]:
    """The schema of each key of a model; the models in it are added to the definitions."""
    inner = inner_models(kind)
    found: dict[str, Schema] = {}
    for name, key in _described(kind, schema)["properties"].items():
        if name in inner:
            model = inner[name]
            keys = _keys(model, models[model.__name__], models, definitions)
            definitions[model.__name__] = {"type": "object", "properties": keys, "additionalProperties": False}
            reference = {"$ref": f"#/definitions/{model.__name__}"}
            found[name] = {"description": key["description"], "anyOf": [reference, {"type": "null"}]}
        else:
            found[name] = _searchable(_as_draft_07(key), [{"type": "null"}] if name in NULL_IS_DEFAULT else [])
    return found


def _shared(name: str, key: Schema, definitions: dict[str, Schema]) -> Schema:
    """A reference to the schema of a key, which algorithms share where it is the same."""
    number = 1
    while definitions.setdefault(place := f"{name}_{number}" if number > 1 else name, key) != key:
        number += 1
    return {"$ref": f"#/definitions/{place}"}


def _as_draft_07(schema: Any) -> Any:
    """The words of pydantic's newer draft in those that editors know, without titles."""
    if isinstance(schema, list):
        return [_as_draft_07(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _as_draft_07(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if "prefixItems" in found:
        found["items"] = found.pop("prefixItems")
    return found


def _searchable(key: Schema, more: list[Schema]) -> Schema:
    """Let a search, and what else is allowed, stand in place of a value."""
    outer: Schema = {name: key[name] for name in ("description", "default") if name in key}
    rest = {name: value for name, value in key.items() if name not in outer}
    return {**outer, "anyOf": [rest, *more, SEARCH]}


def _described(kind: type[BaseModel], schema: Schema) -> Schema:
    """The schema, with the meaning of each key written into it."""
    for name, key in schema["properties"].items():
        key["description"] = meanings(kind)[name]
    return schema


def _sweep_schema() -> Schema:
    """The schema of the keys of a sweep."""
    said: dict[str, dict[str, Any]] = {
        row.key: {"description": row.meaning} for row in sweep_rows() if "." not in row.key
    }
    for key in ("num_samples", "seeds", "max_concurrent_trials"):
        said[key] |= {"type": "integer", "minimum": 1}
    said["metric"] |= {"type": "string"}
    said["mode"] |= {"enum": ["max", "min"]}
    for key, table in (("scheduler", SCHEDULERS), ("search_alg", SEARCHERS)):
        options = {name for entry in table.values() for name in entry.options}
        named = {"type": {"enum": list(table)}, **{name: {} for name in sorted(options)}}
        mapping = {"type": "object", "required": ["type"], "properties": named, "additionalProperties": False}
        said[key] |= {"anyOf": [{"enum": list(table)}, mapping]}
    return said


def _search_schema() -> Schema:
    """What may stand in place of a value."""
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {name: {"type": "array", "description": kind.meaning} for name, kind in KINDS.items()},
        "additionalProperties": False,
    }
