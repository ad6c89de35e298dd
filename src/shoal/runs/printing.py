"""Results and settings as text for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


def pretty_print(result: Any) -> str:
    """A result, an evaluation or a config as YAML-like text, keys sorted, None left out of mappings."""
    from shoal.config.yaml_files import dump_yaml

    return dump_yaml(plain(result))


def plain(value: Any) -> Any:
    """The value in YAML's own types: models and dataclasses become mappings, arrays lists, classes `module:name`."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(value[name]) for name in sorted(value, key=str) if value[name] is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return str(value)
