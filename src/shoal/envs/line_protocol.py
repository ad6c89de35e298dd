"""The lines protocol, version 1: how shoal and a program that is an environment speak with each other.

Every message is one line of JSON. The program speaks first; shoal asks, the program answers:

    program  {"shoal": 1, "observation": SPACE, "action": SPACE, "token": "..."}
    shoal    {"shoal": 1, "env_config": {...}, "env_index": 0}
    shoal    {"reset": {"seed": 7, "options": null}}
    program  {"obs": [0.1, 0.2]}
    shoal    {"step": [0.5]}                      a number for Discrete, an array for Box, an object for Dict
    program  {"obs": [0.3, 0.1], "reward": 1.0, "terminated": false, "truncated": false}
    shoal    {"close": true}                      the end of the stream means the same

`SPACE` is `{"type": "Box", "shape": [2], "low": -1, "high": 1}`, `{"type": "Discrete", "n": 3}`, MultiDiscrete with
`nvec`, MultiBinary with `n`, Dict or Tuple with `spaces`; the experiment's file may give it instead. `token` is there
on sockets alone. A Box of several dimensions is nested arrays, or one array of all its numbers in C's order. An answer
may have `info`, an object, and is `{"error": "..."}` where the program cannot go on. NaN and Infinity may stand for
numbers, as C prints them or as Python does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.envs.spaces import Space
from shoal.errors import EnvError

VERSION = 1
MOST_BYTES = 256 * 2**20  # of one line
_SHOWN = 120
_C_NUMBERS = re.compile(r"(?<=[\[,:\s])(-?)(nan|inf)(?:inity)?(?=[\],}\s])", re.IGNORECASE)


def written(message: Mapping[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":"), default=_plain).encode() + b"\n"


def read(line: bytes) -> dict[str, Any]:
    """The message of a line; an EnvError shows a line that is none."""
    text = line.decode(errors="replace").strip()
    try:
        try:
            message = json.loads(text)
        except ValueError:
            message = json.loads(_C_NUMBERS.sub(_json_number, text))
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise EnvError(
            f"the program sent a line that is not a message: {shown(text)}; its messages are lines of JSON, and what "
            "else it prints goes to stderr, or over a socket (connection: unix)"
        )
    if "error" in message:
        raise EnvError(f"the program reports: {shown(str(message['error']), 500)}")
    return message


def shown(text: str, most: int = _SHOWN) -> str:
    """A line as a sentence quotes it."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def observation(space: Space, value: Any, message: Mapping[str, Any]) -> Any:
    """What a program sent as an observation, in the types of its space."""
    try:
        return _value(space, value)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise EnvError(f"the program's observation does not fit {space}: {shown(json.dumps(message))}") from None


def _value(space: Space, value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _value(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_value(child, part) for child, part in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return np.int64(value)
    return _array(space, value)


def _array(space: Space, value: Any) -> NDArray[Any]:
    """Numbers in the space's shape, or one after the other in C's order."""
    found, shape = np.asarray(value, dtype=space.dtype), space.shape or ()
    if found.shape != shape and found.ndim > 1:
        raise ValueError(f"the shape is {found.shape}")
    return found.reshape(shape)


def action(space: Space, value: Any) -> Any:
    """An action in JSON's types."""
    if isinstance(space, spaces.Dict):
        return {key: action(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [action(child, part) for child, part in zip(space.spaces, value, strict=True)]
    return np.asarray(value).tolist()


def number(message: Mapping[str, Any], name: str) -> float:
    """A number of an answer."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EnvError(f"the program's answer needs a number as {name}: {shown(json.dumps(message))}")
    return float(value)


def flag(message: Mapping[str, Any], name: str) -> bool:
    """A flag of an answer: true, false, 1 or 0; a misspelt one must not pass for false."""
    value = message.get(name)
    if value not in (True, False):
        raise EnvError(f"the program's answer needs true, false, 1 or 0 as {name}: {shown(json.dumps(message))}")
    return bool(value)


def _json_number(match: re.Match[str]) -> str:
    return f"{match[1]}{'NaN' if match[2].lower() == 'nan' else 'Infinity'}"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
