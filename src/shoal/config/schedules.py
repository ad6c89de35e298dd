"""Schedules: numbers that change over environment steps, in one syntax for every key that may.

- `[[0, 1e-3], [100000, 1e-5]]`: linear between its points
- `{type: step, endpoints: [[0, 1e-3], [100000, 1e-5]]}`: each value stays until the next begins
- `{type: exponential, initial: 1e-3, final: 1e-5, timesteps: 100000}`: the same ratio in the same time
- `{type: cosine, initial: 1e-3, final: 1e-5, timesteps: 100000}`: half a wave, slow at both ends

After its last point a schedule stays where it is. `scheduled` in `data/returns.py` gives its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from shoal.config.fields import number, whole

Points = tuple[tuple[int, float], ...]

_KEYS = {
    "exponential": ("initial", "final", "timesteps"),
    "cosine": ("initial", "final", "timesteps"),
    "step": ("endpoints",),
}
_FORM = "must be a list of [step, value] pairs, e.g. [[0, 3e-4], [1000000, 0]]"


def schedule(value: Any) -> Points | dict[str, Any] | None:
    """A checked schedule: a tuple of points, or a mapping with its type."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return _points(value)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ValueError("its type must be exponential, cosine or step; a linear one is a list such as [[0, 1e-3]]")
    if set(value) != {"type", *_KEYS[kind]}:
        raise ValueError(f"with type {kind} it must have {' and '.join(_KEYS[kind])}, and nothing else")
    if kind == "step":
        return {"type": kind, "endpoints": _points(value["endpoints"])}
    initial, final = number(value["initial"]), number(value["final"])
    if min(initial, final) < 0 or (kind == "exponential" and not min(initial, final) > 0):
        raise ValueError(f"its values must be {'above' if kind == 'exponential' else 'at least'} 0")
    timesteps = whole(value["timesteps"])
    if timesteps < 1:
        raise ValueError("its timesteps must be at least 1")
    return {"type": kind, "initial": initial, "final": final, "timesteps": timesteps}


def levels(of: Points | Mapping[str, Any]) -> list[float]:
    """The values that a schedule names, the first of them first; all others lie between."""
    if isinstance(of, Mapping) and "endpoints" not in of:
        return [of["initial"], of["final"]]
    return [level for _, level in (of["endpoints"] if isinstance(of, Mapping) else of)]


def _points(value: Any) -> Points:
    try:
        points = tuple((whole(step), number(level)) for step, level in value)
    except (TypeError, ValueError):
        raise ValueError(_FORM) from None
    steps = [step for step, _ in points]
    if not steps or steps[0] != 0 or any(a >= b for a, b in pairwise(steps)):
        raise ValueError("its steps must start at 0 and ascend, e.g. [[0, 3e-4], [1000000, 0]]")
    if any(level < 0 for _, level in points):
        raise ValueError("its values must be at least 0")
    return points


Schedule = Annotated[
    Points | dict[str, Any] | None,
    PlainValidator(schedule),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                {"type": "object"},
                {"type": "null"},
            ]
        }
    ),
]
