"""Results as data: nested mappings made flat, their numbers, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

PLAIN = frozenset({bool, int, float, str})


def flat(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested result with names joined by `/`; lists and None are left out."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if type(value) in PLAIN:  # nearly all of them; what else it could be takes longer to find out
            found[prefix + str(name)] = value
        elif isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}/"))
        elif hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
            found[prefix + str(name)] = value.item()
        elif isinstance(value, (bool, int, float, str)):
            found[prefix + str(name)] = value
    return found


def numbers(result: Mapping[str, Any]) -> dict[str, int | float]:
    """The finite numbers of a result, flat."""
    return {name: value for name, value in flat(result).items() if is_number(value)}


def number_in(result: Mapping[str, Any], name: str) -> float | None:
    """The finite number at `a/b` of a nested result, or under that very name of a flat one."""
    value: Any = result
    if name in result:
        value = result[name]
    else:
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if is_number(value) else None


def is_number(value: Any) -> bool:
    """Whether it is a finite number, which True and False are not."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def plain_json(value: Any) -> Any:
    """The value in JSON's types, with null where a number is not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
