"""The compiled kernel (`kernel.c`): forward and backward passes, PPO's objective and Adam's step, called by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ConfigError
from shoal.machine.compiling import compiled

Array = NDArray[np.float32]

SOURCE = Path(__file__).with_name("kernel.c")
MOST_DIFFERENCE = 5e-5  # from NumPy's numbers, as a share of the largest of them; rounding makes about 1e-6

_BYTE = ctypes.c_char
_INT, _ADDRESS, _FLOAT, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float, ctypes.c_double

ACTIVATIONS = {"linear": 0, "tanh": 1, "relu": 2}
POLICY, VALUE, BOTH = 1, 2, 3
GAUSSIAN, CATEGORICAL = 0, 1


class NetStruct(ctypes.Structure):
    """`Net` of the C file."""

    _fields_ = (
        ("features", _INT),
        ("layers", _INT),
        ("groups", _INT),
        ("activation", _INT),
        ("widths", _ADDRESS),
        ("computed", _INT),
        ("free", _INT),
        ("computed_at", _ADDRESS),
        ("free_at", _ADDRESS),
        ("room", _ADDRESS),
    )


class TapeStruct(ctypes.Structure):
    """`Tape` of the C file."""

    _fields_ = (("rows", _INT), ("parts", _INT), ("hidden", _ADDRESS), ("grads", _ADDRESS))


class ObjectiveStruct(ctypes.Structure):
    """`Objective` of the C file."""

    _fields_ = (
        ("kind", _INT),
        ("count", _INT),
        ("choices", _INT),
        ("clip_param", _FLOAT),
        ("entropy_coeff", _FLOAT),
        ("vf_loss_coeff", _FLOAT),
        ("vf_clip_param", _FLOAT),
        ("size", _FLOAT),
        ("use_critic", _INT),
    )


class AdamStruct(ctypes.Structure):
    """`AdamStep` of the C file."""

    _fields_ = (
        ("beta1", _DOUBLE),
        ("beta2", _DOUBLE),
        ("eps", _DOUBLE),
        ("grad_clip", _DOUBLE),
        ("v_scale", _DOUBLE),
        ("rate", _DOUBLE),
    )


class Kernel:
    """The functions of one compiled library; they take addresses, of structures and of arrays."""

    def __init__(self, library: ctypes.CDLL, digest: str) -> None:
        self.digest = digest
        self.forward = _function(library.shoal_forward, 6)
        self.backward = _function(library.shoal_backward, 8)
        self.backward_inputs = _function(library.shoal_backward_inputs, 6)
        self.ppo_gradient = library.shoal_ppo_gradient
        self.ppo_gradient.argtypes = [_ADDRESS, _INT, *[_ADDRESS] * 10]
        self.ppo_gradient.restype = _INT
        self.adam = library.shoal_adam
        self.adam.argtypes = [_ADDRESS, _INT, *[_ADDRESS] * 5]
        self.adam.restype = _DOUBLE


def _function(function: Any, num_addresses: int) -> Any:
    function.argtypes = [_ADDRESS] * num_addresses
    function.restype = None
    return function


@cache
def load_kernel(source: Path = SOURCE) -> Kernel:
    """The kernel, compiled for this CPU at first use; an OSError says in a sentence why there is none."""
    return Kernel(*compiled(source.read_text(), "kernel"))


def address(array: NDArray[Any]) -> int:
    """Where the numbers of an array begin; four times as fast as its own answer, where it can be written."""
    try:
        return ctypes.addressof(_BYTE.from_buffer(array.data))
    except (TypeError, ValueError):  # read-only, or empty
        place: int = array.__array_interface__["data"][0]
        return place


def check_close(what: str, found: Array, expected: Array) -> None:
    """Hold what the kernel found against what NumPy did; an OSError says that they are too far apart."""
    largest = float(np.abs(expected).max(initial=0.0))
    difference = float(np.abs(found - expected).max(initial=0.0))
    if not difference <= MOST_DIFFERENCE * max(largest, 1e-6):
        raise OSError(
            f"the compiled kernel differs from NumPy in {what} by {difference:.2g} where the largest number is "
            f"{largest:.2g}"
        )


@contextmanager
def checking() -> Iterator[None]:
    """Refuse the configuration if a check inside fails, of what is used beside a network that has passed its own."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"config.kernel: compiled is not possible: {error}; set kernel: numpy") from error


@dataclass(frozen=True)
class KernelUse:
    """What became of a policy's `kernel`: the digest of the one in use, or why there is none."""

    digest: str | None
    reason: str = ""
    has_failed: bool = False  # it would fit the network, but cannot be compiled or differs from NumPy

    def __str__(self) -> str:
        if self.digest is None:
            return f"kernel: auto is not compiled: {self.reason}"
        return f"kernel: compiled ({self.digest}), checked against NumPy"
