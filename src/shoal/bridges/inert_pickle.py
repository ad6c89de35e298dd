"""Reads what a pickle holds without running any of it.

Nothing is imported and nothing of the file is called. Containers, numbers, texts and NumPy's arrays of numbers are
themselves; every class or function that the pickle names becomes an `Inert` with its arguments and its state, which
does nothing. Opcodes are looked at before they are carried out, and sizes are bounded: a file that was made to harm can
at most be refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ConfigError

MOST_OPCODES = 5_000_000
MOST_REMEMBERED = 5_000_000  # the largest place in the pickle's memory, which a reader would make room for
MOST_DEPTH = 60
MOST_BYTES = 1 << 28
ARRAY_KINDS = "biufc"
LONGEST_NAME = 200

_REFUSED = {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "INST", "OBJ"}
_PLACES = {"PUT", "BINPUT", "LONG_BINPUT"}

Rebuild = Callable[..., Any]


class Inert:
    """What a pickle would have made of a class or function: its name, what it was called with, and its state."""

    module = ""
    name = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        """Keep what it was called with."""
        made = object.__new__(cls)
        made.args, made.kwargs, made.state = args, kwargs, None
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, value: Any) -> None:
        """Stay as it is: nobody asks what a list of a kind of its own holds."""

    def extend(self, values: Any) -> None:
        """Stay as it is."""

    def add(self, value: Any) -> None:
        """Stay as it is."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{self.module}.{self.name}>"

    def attribute(self, name: str) -> Any:
        """An attribute that it would have had; None where it would not."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # with slots
            state = state[0]
        return state.get(name) if isinstance(state, Mapping) else None


class PickledArray:
    """An array whose numbers come after it has been made."""

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.array = numbers_from(raw, dtype, shape, "F" if is_fortran else "C")


class PickledType:
    """The type of an array's numbers."""

    def __init__(self, name: Any = "", *_: Any) -> None:
        self.dtype = np.dtype(_checked_type_name(name))

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise ValueError("an array has an unknown order of bytes")
        if self.dtype.itemsize > 1 and order in "<>":
            self.dtype = self.dtype.newbyteorder(order)


def _checked_type_name(name: Any) -> str:
    if not isinstance(name, str) or not name[:1].isalpha() or name[0] not in ARRAY_KINDS or not name[1:].isdigit():
        raise ValueError(f"an array is of the type {str(name)[:40]!r}, and not of numbers")
    return name


def numbers_from(raw: Any, dtype: Any, shape: Any, order: str) -> NDArray[Any]:
    """An array of these bytes."""
    if not isinstance(dtype, PickledType) or not isinstance(raw, bytes | bytearray):
        raise ValueError("an array holds something else than numbers")
    if not isinstance(shape, tuple) or not all(type(side) is int and 0 <= side <= MOST_BYTES for side in shape):
        raise ValueError("an array has an impossible shape")
    flat = np.frombuffer(bytes(raw), dtype.dtype)
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: Any, raw: Any) -> Any:
    return numbers_from(raw, dtype, (1,), "C")[0]


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
        raise ValueError("it holds text in an unknown encoding")
    return text.encode("latin1")


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any]:
    return numbers_from(raw, dtype, shape, str(order))


KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _encoded,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): PickledArray for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}
"""What is made of the few names that arrays of numbers need; all are functions and classes of this module."""


class _Reader(pickle.Unpickler):
    """An unpickler that imports nothing."""

    def __init__(self, data: bytes, known: Mapping[tuple[str, str], Any], stored: Rebuild | None) -> None:
        super().__init__(io.BytesIO(data))
        self._known, self._stored = known, stored
        self._kinds: dict[tuple[str, str], type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name; never the thing itself."""
        place = module[:LONGEST_NAME], name[:LONGEST_NAME]
        if place in self._known:
            return self._known[place]
        if place not in self._kinds:
            self._kinds[place] = type("Inert", (Inert,), {"module": place[0], "name": place[1]})
        return self._kinds[place]

    def persistent_load(self, pid: Any) -> Any:
        """What a file of torch keeps beside the pickle."""
        if self._stored is None:
            raise ValueError("it refers to something outside of itself")
        return self._stored(pid)


def read_pickle(
    data: bytes, what: str, known: Mapping[tuple[str, str], Any] | None = None, stored: Rebuild | None = None
) -> Any:
    """What a pickle holds, with `Inert`s in the place of all that would have run; `what` is its name in messages.

    `known` are more names with functions of ours; `stored` gives what the pickle refers to outside of itself.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{what}: is larger than {MOST_BYTES >> 20} MB, and is not opened")
    try:
        _look_through(data)
        return plain(_Reader(data, {**KNOWN, **(known or {})}, stored).load())
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{what}: is nested too deeply to be read") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{what}: cannot be read as it stands: {reason}") from None


def _look_through(data: bytes) -> None:
    """Refuse opcodes that nobody needs, and memory that nobody has."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count > MOST_OPCODES:
            raise ValueError(f"it has more than {MOST_OPCODES:,} parts")
        if opcode.name in _REFUSED:
            raise ValueError(f"it has the opcode {opcode.name}, which is not read here")
        if opcode.name in _PLACES and (not isinstance(argument, int) or argument > MOST_REMEMBERED):
            raise ValueError("it asks for more memory than it can use")


def plain(value: Any) -> Any:
    """The same with arrays in the place of what stood for them."""
    return _Plain().of(value, 0)


class _Plain:
    """Walks through what was read, each thing once: a pickle may refer to one a million times."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def of(self, value: Any, depth: int) -> Any:
        """One value, that many containers deep."""
        if depth > MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if isinstance(value, PickledArray):
            return value.array
        if isinstance(value, PickledType):
            return value.dtype
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, dict):
            result: Any = {key: self.of(inner, depth + 1) for key, inner in value.items()}
        elif isinstance(value, list | tuple):
            result = type(value)([self.of(inner, depth + 1) for inner in value])
        elif isinstance(value, Inert):
            result = self._done[id(value)] = value  # before its state, which may lead back to it
            value.args = self.of(value.args, depth + 1)
            value.state = self.of(value.state, depth + 1)
        else:
            return value
        self._done[id(value)] = result
        return result
