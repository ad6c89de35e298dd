"""Every key with its type, default and meaning: as rows for people, and as a JSON Schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from shoal.config.experiment import ALGORITHMS, EXPERIMENT_KEYS, Experiment, algorithm_class
from shoal.config.settings import AlgorithmConfig
from shoal.config.stopping import CUSTOM_METRICS, EVALUATION_NAMES, RESULT_NAMES

_WORDS = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
    "null": "null",
}
_LIMITS = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))


class Row(NamedTuple):
    """One key of the reference."""

    key: str
    type: str
    default: str
    meaning: str


def config_rows(run: str) -> list[Row]:
    """Every key that may stand under `config` for an algorithm; inner ones as `model.fcnet_hiddens`."""
    kind = algorithm_class(run)
    return list(_rows(kind, kind.model_json_schema(), ""))


def experiment_rows() -> list[Row]:
    """Every key that may stand beside `config` in an experiment."""
    schema = _experiment_schema()
    rows = [row for row in _rows(Experiment, schema, "") if row.key in EXPERIMENT_KEYS]
    env = AlgorithmConfig.model_fields["env"]
    return [Row("env", "text", "", _meaning(env.description)), *rows]


def stop_rows() -> list[Row]:
    """Every name that may stand under `stop`."""
    rows = [Row(f"stop.{name}", "number", "", known.meaning) for name, known in RESULT_NAMES.items()]
    rows += [
        Row(f"stop.{name}", "number", "", f"{RESULT_NAMES[name.partition('/')[2]].meaning}, in evaluation")
        for name in EVALUATION_NAMES
    ]
    return [*rows, Row(f"stop.{CUSTOM_METRICS}NAME", "number", "", "mean of a number that your environment reports")]


def file_schema(run: str) -> dict[str, Any]:
    """The JSON Schema of a file of experiments with this algorithm."""
    experiment = _experiment_schema()
    config = algorithm_class(run).model_json_schema()
    definitions = {**experiment.pop("$defs", {}), **config.pop("$defs", {})}
    del experiment["properties"]["name"]
    experiment["properties"]["run"] = {"enum": list(ALGORITHMS), "default": "PPO"}
    experiment["properties"]["stop"] = {
        "type": "object",
        "description": experiment["properties"]["stop"]["description"],
        "properties": {
            **{name: {"type": "number", "description": known.meaning} for name, known in RESULT_NAMES.items()},
            **{name: {"type": "number"} for name in EVALUATION_NAMES},
            "time_total_s": {"type": ["number", "string"], "description": RESULT_NAMES["time_total_s"].meaning},
        },
        "patternProperties": {f"^{CUSTOM_METRICS}.": {"type": "number"}},
        "additionalProperties": False,
    }
    experiment["properties"]["env"] = config["properties"]["env"]
    experiment["properties"]["config"] = config
    experiment.pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"shoal experiments with {run}",
        "type": "object",
        "additionalProperties": experiment,
        "$defs": definitions,
    }


def _experiment_schema() -> dict[str, Any]:
    """The schema of an experiment without its algorithm's keys, which have a schema of their own."""
    schema = Experiment.model_json_schema()
    schema["properties"].pop("config", None)
    return schema


def _rows(kind: type[BaseModel], schema: dict[str, Any], prefix: str) -> Iterator[Row]:
    for name, field in kind.model_fields.items():
        if name not in schema["properties"]:
            continue
        key = prefix + name
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield Row(key, "mapping", "", _meaning(field.description))
            yield from _rows(inner, inner.model_json_schema(), f"{key}.")
        else:
            kind_of_value = _type(schema["properties"][name])
            yield Row(
                key, kind_of_value, _yaml(field.get_default(call_default_factory=True)), _meaning(field.description)
            )


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


def _meaning(description: str | None) -> str:
    return " ".join((description or "").split())
