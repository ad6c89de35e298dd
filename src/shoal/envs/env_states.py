"""The state of an environment in mid-episode, where it offers one: `get_state()` and `set_state(state)`.

A run that goes on then needs no replay of actions. The state may be made of text, numbers, bytes, NumPy arrays, lists,
tuples and mappings with text as keys; it is kept as JSON beside one array of bytes, never as a pickle. The generator
`np_random` of a `gymnasium.Env` is kept with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from shoal.data.state import State
from shoal.errors import EnvError

_MARKS = ("$array", "$bytes", "$tuple", "$float")
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def offers_state(env: Any) -> bool:
    """Whether an environment has `get_state()` and `set_state(state)`; of a wrapped one, its outermost wrapper."""
    return _takes(getattr(env, "get_state", None), 0) and _takes(getattr(env, "set_state", None), 1)


def state_of(env: Any) -> State | None:
    """What the environment says of itself, and its generator; None where it has no state to give just now."""
    told = env.get_state()
    if told is None:
        return None
    chunks: list[bytes] = []
    generator = getattr(env, "_np_random", None)
    bits = generator.bit_generator.state if isinstance(generator, np.random.Generator) else None
    values = {"env": _packed(told, chunks, "state"), "np_random": _packed(bits, chunks, "np_random")}
    return State(values, {"bytes": np.frombuffer(b"".join(chunks), np.uint8)})


def restore_state(env: Any, state: State) -> None:
    """Bring an environment, which has been reset, to where it stood."""
    data = state.arrays["bytes"].tobytes()
    env.set_state(_unpacked(state.values["env"], data))
    bits = _unpacked(state.values["np_random"], data)
    if bits is not None and bits["bit_generator"] in _GENERATORS:
        generator = np.random.Generator(getattr(np.random, bits["bit_generator"])())
        generator.bit_generator.state = bits
        env._np_random = generator


def _takes(method: Callable[..., Any] | None, count: int) -> bool:
    """Whether a method can be called with so many values; other people's methods of that name may mean other things."""
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _packed(value: Any, chunks: list[bytes], place: str) -> Any:
    """A value in JSON's types; what JSON has no word for lies in `chunks`."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names:
            raise EnvError(f"{place} is an array of {array.dtype}, which cannot be saved; use numbers")
        return {"$array": _added(array.tobytes(), chunks), "dtype": array.dtype.str, "shape": list(array.shape)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": _added(bytes(value), chunks)}
    if isinstance(value, list):
        return [_packed(item, chunks, f"{place}[{k}]") for k, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_packed(item, chunks, f"{place}[{k}]") for k, item in enumerate(value)]}
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str) or key in _MARKS]
        if odd:
            raise EnvError(f"{place} has the key {odd[0]!r}; keys must be text, and none of {', '.join(_MARKS)}")
        return {key: _packed(item, chunks, f"{place}.{key}") for key, item in value.items()}
    raise EnvError(
        f"{place} is of type {type(value).__name__}, which cannot be saved; use text, numbers, bytes, NumPy arrays, "
        "lists, tuples and mappings"
    )


def _added(data: bytes, chunks: list[bytes]) -> list[int]:
    begin = sum(map(len, chunks))
    chunks.append(data)
    return [begin, begin + len(data)]


def _unpacked(value: Any, data: bytes) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, data) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(_unpacked(item, data) for item in value["$tuple"])
    if "$bytes" in value:
        begin, end = value["$bytes"]
        return data[begin:end]
    if "$array" in value:
        begin, end = value["$array"]
        return np.frombuffer(data[begin:end], np.dtype(value["dtype"])).reshape(value["shape"]).copy()
    return {key: _unpacked(item, data) for key, item in value.items()}
