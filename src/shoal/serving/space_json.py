"""Observations and actions as JSON: the schema of a space, and values of it, checked number by number.

A Box is nested lists of its shape, a choice an integer, a bit 0, 1, false or true, a Dict an object, a Tuple a list, a
sequence a list of items. What the schema allows is taken, and what it does not is refused with one sentence; a float of
a Box may lie outside of the Box's bounds, as it may in training, but not beyond `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from shoal.envs.masks import MaskSpec
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import Path, Space, leaves_of

LARGEST = 1e18
"""Of a number in an observation: networks of any usual size still answer with finite numbers."""
SHOWN = 60  # characters of a value in a message

Schema = dict[str, Any]


class ObservationForm:
    """How observations of a policy look as JSON."""

    def __init__(self, spec: ObsSpec) -> None:
        self.spec = spec
        self._space = _with_flags(spec)
        self._lengths = {leaf.path: leaf.items.max_len for leaf in spec.leaves if leaf.items is not None}

    def schema(self) -> Schema:
        """The JSON Schema (2020-12) of one observation."""
        found = _schema(self._space, (), self._lengths, is_action=False)
        if self.spec.mask is not None:
            for path, columns in self.spec.mask.columns.items():
                _allow_something(_part(found, path), self.spec.mask, columns)
        return found

    def parsed(self, value: Any, where: str) -> Any:
        """An observation as the environment has it; a ValueError says what does not fit, and `where`."""
        found = _value(self._space, value, where, (), self._lengths)
        mask = self.spec.mask
        if mask is not None:
            row = mask.row(found)
            if mask.stuck(row[None]).any():
                raise ValueError(f"{where}.{mask.trouble(row)}")
        return found

    def example(self) -> Any:
        """An observation that is taken: numbers near 0, the first of choices, no items, masks that allow everything."""
        return _example(self._space)


def action_schema(space: Space) -> Schema:
    """The JSON Schema of what a policy answers with."""
    return _schema(space, (), {}, is_action=True)


def action_json(action: Any) -> Any:
    """An action of the environment in JSON's types."""
    if isinstance(action, Mapping):
        return {str(key): action_json(part) for key, part in action.items()}
    if isinstance(action, tuple | list):
        return [action_json(part) for part in action]
    if isinstance(action, np.ndarray | np.generic):
        return action.tolist()
    return action


def _example(space: Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {str(key): _example(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [_example(child) for child in space.spaces]
    if isinstance(space, spaces.Sequence):
        return []
    if isinstance(space, spaces.MultiBinary):
        return np.ones(space.shape, int).tolist()
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype).tolist()
    first, _ = _choices(space)
    return first.tolist()


def _with_flags(spec: ObsSpec) -> Space:
    """The observation space with masks as bits, whatever kind of array the environment has for them."""
    if spec.mask is None:
        return spec.space
    values: dict[Path, Any] = dict(leaves_of(spec.space))
    for path in spec.mask.columns:
        values[path] = spaces.MultiBinary(values[path].shape)
    return _rebuilt(spec.space, values, ())


def _rebuilt(space: Space, leaves: Mapping[Path, Space], path: Path) -> Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _rebuilt(child, leaves, (*path, key))) for key, child in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_rebuilt(child, leaves, (*path, at)) for at, child in enumerate(space.spaces)])
    return leaves[path]


def _schema(space: Space, path: Path, lengths: Mapping[Path, int], is_action: bool) -> Schema:
    if isinstance(space, spaces.Dict):
        parts = {str(key): _schema(child, (*path, key), lengths, is_action) for key, child in space.spaces.items()}
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    if isinstance(space, spaces.Tuple):
        members = [_schema(child, (*path, at), lengths, is_action) for at, child in enumerate(space.spaces)]
        return _list_of(members)
    if isinstance(space, spaces.Sequence):
        return {"type": "array", "items": _schema(space.feature_space, (), {}, is_action), "maxItems": lengths[path]}
    if isinstance(space, spaces.MultiBinary):
        return _nested(space.shape, {"type": "integer", "minimum": 0, "maximum": 1} if is_action else _BIT)
    if isinstance(space, spaces.Box):
        return _nested(space.shape, {"type": "number"} if is_action else _box_number(space))
    first, last = _choices(space)
    return _nested_integers(first, last)


def _part(schema: Schema, path: Path) -> Schema:
    """The schema of a leaf."""
    for key in path:
        schema = schema["properties"][key] if "properties" in schema else schema["prefixItems"][int(key)]
    return schema


def _allow_something(schema: Schema, mask: MaskSpec, columns: slice) -> None:
    """Let a list of flags have one that is set for each choice that they are about; deeper lists stay as they are."""
    if schema["items"] is not _BIT:
        return
    begins = [start - columns.start for start in mask.starts.tolist() if columns.start <= start < columns.stop]
    ends = [*begins[1:], columns.stop - columns.start]
    if len(begins) == 1:
        schema["contains"] = {"enum": [1, True]}
        return
    unset: Schema = {"enum": [0, False]}
    schema["allOf"] = [
        {"not": {"prefixItems": [*([{}] * begin), *([unset] * (end - begin))]}}
        for begin, end in zip(begins, ends, strict=True)
    ]


_BIT: Schema = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1}, {"type": "boolean"}]}


def _box_number(space: spaces.Box) -> Schema:
    low, high = _limits(space)
    return {"type": "integer" if _is_integer(space) else "number", "minimum": low, "maximum": high}


def _nested(shape: tuple[int, ...], number: Schema) -> Schema:
    """Lists within lists of a shape, of the same number everywhere."""
    found = number
    for size in reversed(shape):
        found = {"type": "array", "items": found, "minItems": size, "maxItems": size}
    return found


def _nested_integers(first: NDArray[np.int64], last: NDArray[np.int64]) -> Schema:
    """Lists within lists of integers, each with bounds of its own."""
    if first.ndim == 0:
        return {"type": "integer", "minimum": int(first), "maximum": int(last)}
    if (first == first.flat[0]).all() and (last == last.flat[0]).all():
        number = {"type": "integer", "minimum": int(first.flat[0]), "maximum": int(last.flat[0])}
        return _nested(first.shape, number)
    return _list_of([_nested_integers(low, high) for low, high in zip(first, last, strict=True)])


def _list_of(members: list[Schema]) -> Schema:
    """A list with a schema for each member."""
    size = len(members)
    return {"type": "array", "prefixItems": members, "minItems": size, "maxItems": size}


def _value(space: Space, value: Any, where: str, path: Path, lengths: Mapping[Path, int]) -> Any:
    if isinstance(space, spaces.Dict):
        return _members(space, value, where, path, lengths)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise ValueError(f"{where} must be a list of {len(space.spaces)} (got {_shown(value)})")
        pairs = enumerate(zip(space.spaces, value, strict=True))
        return tuple(_value(child, part, f"{where}[{at}]", (*path, at), lengths) for at, (child, part) in pairs)
    if isinstance(space, spaces.Sequence):
        return _items(space, value, where, lengths[path])
    return _array(space, value, where)


def _members(space: spaces.Dict, value: Any, where: str, path: Path, lengths: Mapping[Path, int]) -> dict[Any, Any]:
    keys = {str(key): key for key in space.spaces}
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object with {', '.join(keys)} (got {_shown(value)})")
    for key in keys:
        if key not in value:
            raise ValueError(f"{where} lacks {key!r}")
    for key in value:
        if key not in keys:
            raise ValueError(f"{where} has {_shown(key)}, which is none of {', '.join(keys)}")
    found = {}
    for text, key in keys.items():
        found[key] = _value(space.spaces[key], value[text], f"{where}.{text}", (*path, key), lengths)
    return found


def _items(space: spaces.Sequence, value: Any, where: str, most: int) -> Any:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{where} must be a list of at most {most} items (got {_shown(value)})")
    item = space.feature_space
    items = tuple(_value(item, part, f"{where}[{at}]", (), {}) for at, part in enumerate(value))
    if not space.stack:
        return items
    room: Any = create_empty_array(item, len(items))
    return concatenate(item, items, room) if items else room


def _array(space: Space, value: Any, where: str) -> NDArray[Any]:
    """The numbers of a leaf of the observation."""
    shape = tuple(space.shape or ())
    takes_bits = isinstance(space, spaces.MultiBinary)
    if not _has_shape(value, shape, takes_bits):
        raise ValueError(_misfit(value, shape, takes_bits, where))
    if len(shape) == 1 and _holds_floats(space) and value and min(value) >= -LARGEST and max(value) <= LARGEST:
        return np.array(value, np.float64)  # the usual observation, by the quickest way
    try:
        array = np.array(value, np.float64)
    except OverflowError:  # an integer of hundreds of digits
        array = np.full(shape, np.inf)
    low: Any
    high: Any
    if isinstance(space, spaces.Box):
        low, high = _limits(space)
        is_whole = _is_integer(space)
    else:
        low, high = _choices(space)
        is_whole = True
    bad = (array < low) | (array > high)
    if is_whole:
        bad |= np.floor(array) != array
    is_choice = not isinstance(space, spaces.Box)
    if is_choice and not bad.any():  # again and exactly: of large integers a double does not know every one
        chosen = np.array(value).astype(np.int64)
        bad = (chosen < low) | (chosen > high)
    if bad.any():
        raise ValueError(f"{where}: {_wanted(space, is_whole, low, high)} (got {_shown(_first(array, bad))})")
    if is_choice:
        return chosen
    return array.astype(space.dtype) if is_whole else array


def _first(array: NDArray[Any], bad: NDArray[np.bool_]) -> float:
    return float(array.reshape(-1)[int(bad.reshape(-1).argmax())])


def _wanted(space: Space, is_whole: bool, low: Any, high: Any) -> str:
    if isinstance(space, spaces.MultiBinary):
        return "flags must be 0 or 1"
    lowest, highest = np.min(low), np.max(high)
    if is_whole:
        return f"numbers must be whole and from {lowest:g} to {highest:g}"
    return f"numbers must be finite and from {lowest:g} to {highest:g}"


def _has_shape(value: Any, shape: tuple[int, ...], takes_bits: bool) -> bool:
    """Whether JSON is nested lists of that shape, with nothing but numbers in it."""
    if not shape:
        kind = type(value)
        return kind is float or kind is int or (takes_bits and kind is bool)
    if type(value) is not list or len(value) != shape[0]:
        return False
    if len(shape) == 1 and not takes_bits:
        return {*map(type, value)} <= _NUMBERS
    return all(_has_shape(part, shape[1:], takes_bits) for part in value)


def _misfit(value: Any, shape: tuple[int, ...], takes_bits: bool, where: str) -> str:
    """What the first is, and where, that keeps JSON from being nested lists of that shape."""
    if shape and type(value) is list and len(value) == shape[0]:
        parts = enumerate(value)
        at, part = next((at, part) for at, part in parts if not _has_shape(part, shape[1:], takes_bits))
        return _misfit(part, shape[1:], takes_bits, f"{where}[{at}]")
    wanted = f"lists of shape {list(shape)} with numbers" if shape else "a number"
    return f"{where} must be {wanted} (got {_shown(value)})"


_NUMBERS = {int, float}


def _is_integer(space: spaces.Box) -> bool:
    return bool(np.issubdtype(space.dtype or np.float32, np.integer))


def _holds_floats(space: Space) -> bool:
    return isinstance(space, spaces.Box) and not _is_integer(space)


def _limits(space: spaces.Box) -> tuple[float, float]:
    """From where to where a number of a Box may be: of its type, not of the Box."""
    if not _is_integer(space):
        return -LARGEST, LARGEST
    info = np.iinfo(space.dtype)  # type: ignore[type-var]
    return max(int(info.min), -int(LARGEST)), min(int(info.max), int(LARGEST))


def _choices(space: Space) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the last value of each number of a discrete space."""
    if isinstance(space, spaces.Discrete):
        first = np.array(space.start, np.int64)
        return first, first + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)), np.int64)
        return first, first + space.nvec.astype(np.int64) - 1
    assert isinstance(space, spaces.MultiBinary)
    return np.zeros(space.shape, np.int64), np.ones(space.shape, np.int64)


def _shown(value: Any) -> str:
    """A value in a message: short, and without walking through all of what was sent."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        return "a huge number"
    return repr(value)[:SHOWN]
