"""Results and settings as text for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any


def pretty_print(result: Any) -> str:
    """A result, an evaluation or a config as text in YAML's manner, keys sorted, None left out of mappings."""
    return "\n".join(_lines(yaml_value(result), ""))


def _lines(value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{indent}{_inline(value)}"
        return
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from _lines(item, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_inline(item)}"


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_inline(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_inline(item)}' for name, item in value.items())}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def yaml_value(value: Any) -> Any:
    """The value in YAML's own types: models and dataclasses become mappings, arrays lists, classes `module:name`."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): yaml_value(value[name]) for name in sorted(value, key=str) if value[name] is not None}
    if isinstance(value, (list, tuple)):
        return [yaml_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(yaml_value(item) for item in value)
    if hasattr(value, "tolist"):
        return yaml_value(value.tolist())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value)
