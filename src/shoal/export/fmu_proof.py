"""What the binary of an FMU answers, called as a master of the co-simulation calls it."""

from __future__ import annotations

import ctypes
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.errors import ShoalError
from shoal.export.fmu_variables import Variable
from shoal.export.plan import Plan
from shoal.export.proof import Answers, Questions


def asked_fmu(
    version: str, asked: Questions, plan: Plan, variables: Sequence[Variable], library: Path, guid: str
) -> Answers:
    """The answers of a library; it is loaded from a copy, for a loaded file may not be touched any more."""
    copy = library.with_suffix(".proof")
    shutil.copy(library, copy)
    master: _Master = (_Fmi3 if version == "3.0" else _Fmi2)(ctypes.CDLL(str(copy)), guid, variables, plan.num_action)
    actions, seconds = np.zeros((len(asked), plan.num_action)), 0.0
    for row in range(len(asked)):
        status = master.reset() if asked.begins[row] else 0
        numbers = asked.rows[row]
        if plan.sees_reward:
            numbers = np.append(numbers, asked.rewards[row])
        status |= master.inputs.put(master.instance, numbers)
        started = time.process_time()
        status |= master.step(float(row))
        seconds += time.process_time() - started
        status |= master.outputs.take(master.instance, actions[row])
        if status:
            raise ShoalError(f"the export cannot be proved: the FMU refused observation {row}")
    master.end()
    copy.unlink()
    return Answers(actions, None, 1e6 * seconds / len(asked))


class _Master(Protocol):
    """Who calls an FMU, in the words of one version of FMI; a status is 0 if all is well."""

    instance: Any
    inputs: _Calls
    outputs: _Calls

    def reset(self) -> int: ...
    def step(self, now: float) -> int: ...
    def end(self) -> None: ...


class _Fmi2:
    def __init__(self, library: Any, guid: str, variables: Sequence[Variable], num_action: int) -> None:
        library.fmi2Instantiate.restype = ctypes.c_void_p
        library.fmi2DoStep.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_double, ctypes.c_int]
        begin = len(variables) - num_action
        self._library = library
        self.instance = ctypes.c_void_p(library.fmi2Instantiate(b"proof", 1, guid.encode(), b"", None, 0, 0))
        self.inputs = _Calls(variables[:begin], 0, library.fmi2SetReal, library.fmi2SetInteger, False)
        self.outputs = _Calls(variables[begin:], begin, library.fmi2GetReal, library.fmi2GetInteger, False)

    def reset(self) -> int:
        return int(self._library.fmi2Reset(self.instance))

    def step(self, now: float) -> int:
        return int(self._library.fmi2DoStep(self.instance, now, 1.0, 1))

    def end(self) -> None:
        self._library.fmi2FreeInstance(self.instance)


class _Fmi3:
    def __init__(self, library: Any, guid: str, variables: Sequence[Variable], num_action: int) -> None:
        flag, pointer = ctypes.c_bool, ctypes.c_void_p
        texts = [ctypes.c_char_p] * 3
        create = library.fmi3InstantiateCoSimulation
        create.restype = pointer
        create.argtypes = [*texts, flag, flag, flag, flag, pointer, ctypes.c_size_t, pointer, pointer, pointer]
        step = library.fmi3DoStep
        step.argtypes = [pointer, ctypes.c_double, ctypes.c_double, flag, pointer, pointer, pointer, pointer]
        begin = len(variables) - num_action
        self._library = library
        made = create(b"proof", guid.encode(), b"", False, False, False, False, None, 0, None, None, None)
        self.instance = pointer(made)
        self.inputs = _Calls(variables[:begin], 0, library.fmi3SetFloat64, library.fmi3SetInt32, True)
        self.outputs = _Calls(variables[begin:], begin, library.fmi3GetFloat64, library.fmi3GetInt32, True)
        self._flags = [flag(), flag(), flag()]
        self._last = ctypes.c_double()

    def reset(self) -> int:
        return int(self._library.fmi3Reset(self.instance))

    def step(self, now: float) -> int:
        told = [ctypes.byref(flag) for flag in self._flags]
        return int(self._library.fmi3DoStep(self.instance, now, 1.0, True, *told, ctypes.byref(self._last)))

    def end(self) -> None:
        self._library.fmi3FreeInstance(self.instance)


class _Calls:
    """Setting or getting variables that follow each other, reals and integers apart."""

    def __init__(self, variables: Sequence[Variable], first: int, real: Any, whole: Any, tells_length: bool) -> None:
        is_whole = np.array([variable.is_whole for variable in variables], bool)
        self._places = np.flatnonzero(~is_whole), np.flatnonzero(is_whole)
        self._references = [(ctypes.c_uint * len(at))(*(at + first).tolist()) for at in self._places]
        self._rooms: list[Any] = [(ctypes.c_double * len(self._places[0]))(), (ctypes.c_int * len(self._places[1]))()]
        self._functions = real, whole
        self._tells_length = tells_length  # of the values, once more, in FMI 3.0

    def put(self, instance: Any, values: np.ndarray[Any, Any]) -> int:
        for at, room in zip(self._places, self._rooms, strict=True):
            room[:] = values[at].tolist() if room._type_ is ctypes.c_double else [int(v) for v in values[at]]
        return self._call(instance)

    def take(self, instance: Any, values: np.ndarray[Any, Any]) -> int:
        status = self._call(instance)
        for at, room in zip(self._places, self._rooms, strict=True):
            values[at] = room[:]
        return status

    def _call(self, instance: Any) -> int:
        status = 0
        for function, references, room in zip(self._functions, self._references, self._rooms, strict=True):
            length = ctypes.c_size_t(len(room))
            again = (length,) if self._tells_length else ()
            status |= function(instance, references, length, room, *again)
        return int(status)
