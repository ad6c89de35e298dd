"""`--format fmu`: a co-simulation FMU of FMI 2.0 around the C source, with its binary where a compiler is."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
from gymnasium import spaces

from shoal.errors import ShoalError
from shoal.export.c_export import NO_COMPILER, write_c
from shoal.export.compiling import C_FLAGS, c_compiler, run, version_of
from shoal.export.made import Made, Request
from shoal.export.plan import ActionField, ObsField, Plan, refusal
from shoal.export.proof import Answers

MOST_VARIABLES = 2000
LARGEST = 2**31 - 1  # of an FMI integer


@dataclass(frozen=True)
class Variable:
    """One number of an observation or an action."""

    name: str
    is_whole: bool
    is_output: bool
    start: float
    low: float
    high: float


def make_fmu(request: Request) -> Made:
    """An FMU."""
    plan = request.subject.plan("fmu")
    if plan.num_obs + plan.num_action > MOST_VARIABLES:
        raise refusal(
            "fmu", f"observations of {plan.num_obs:,} numbers, and an FMU has a variable for each", "c, or onnx"
        )
    variables = _variables(plan)
    sources = write_c(request, plan)
    guid = "{" + hashlib.sha256(sources[1].read_bytes()).hexdigest()[:32] + "}"
    wrapper = request.folder / f"{request.name}_fmi2.c"
    wrapper.write_text(_wrapper(request.name, plan, variables, guid))
    sources.append(wrapper)
    file, compiler = request.folder / f"{request.name}.fmu", c_compiler()
    answers, place = None, _platform()
    library = request.folder / f"{request.name}.{'dylib' if sys.platform == 'darwin' else 'so'}"
    if compiler is not None:
        flags = (*C_FLAGS, "-fPIC", "-shared", "-fvisibility=hidden")
        run([*compiler, *flags, "-o", library, sources[1], wrapper, "-lm"], request.folder)
        answers = _asked(request, plan, variables, library, guid)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("modelDescription.xml", _description(request, variables, guid))
        for source in sources:
            archive.write(source, f"sources/{source.name}")
        if compiler is not None:
            archive.write(library, f"binaries/{place}/{library.name}")
    for left in (*sources, library):
        left.unlink(missing_ok=True)
    if compiler is None:
        why = NO_COMPILER.format("C", "CC") + "; the FMU holds sources alone"
        return Made([file], None, "", why)
    return Made([file], answers, version_of(compiler), notes={"fmi": "2.0", "platform": place})


def _variables(plan: Plan) -> list[Variable]:
    """Every variable in the order of value references."""
    found = []
    for field in plan.fields:
        found += _of_obs(field)
    if plan.sees_reward:
        found.append(Variable("reward", False, False, 0.0, -np.inf, np.inf))
    for action in plan.actions:
        found += _of_action(action)
    return found


def _of_obs(field: ObsField) -> list[Variable]:
    space, found = field.space, []
    low, high = np.full(field.size, -np.inf), np.full(field.size, np.inf)
    if field.kind == "mask":
        low, high = np.zeros(field.size), np.ones(field.size)
    elif isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    elif isinstance(space, spaces.Discrete):
        low, high = np.array([float(space.start)]), np.array([float(space.start + space.n - 1)])
    elif isinstance(space, spaces.MultiDiscrete):
        low = np.asarray(space.start, np.float64).reshape(-1)
        high = low + space.nvec.reshape(-1) - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(field.size), np.ones(field.size)
    integer = field.kind == "mask" or np.issubdtype(space.dtype or np.float32, np.integer)
    name = "obs" if not field.path else f"obs.{field.name}"
    for k, label in enumerate(_labels(name, field.shape, field.size)):
        whole = bool(integer and low[k] >= -LARGEST and high[k] <= LARGEST)
        start = 1.0 if field.kind == "mask" else float(np.clip(0.0, low[k], high[k]))
        found.append(Variable(label, whole, False, start, float(low[k]), float(high[k])))
    return found


def _of_action(action: ActionField) -> list[Variable]:
    name, found = "action" if not action.path else f"action.{action.name}", []
    low, high = action.low, action.high
    if action.kind == "categorical":
        low = action.first.astype(np.float64)
        high = low + np.array(action.choices) - 1
    elif action.kind == "bernoulli":
        low, high = np.zeros(action.size), np.ones(action.size)
    for k, label in enumerate(_labels(name, action.shape, action.size)):
        whole = bool(action.is_integer and low[k] >= -LARGEST and high[k] <= LARGEST)
        start = float(np.clip(0.0, low[k], high[k]))
        found.append(Variable(label, whole, True, start, float(low[k]), float(high[k])))
    return found


def _labels(name: str, shape: tuple[int, ...], size: int) -> list[str]:
    if not shape:
        return [name]
    places = [np.unravel_index(k, shape) for k in range(size)]
    return [f"{name}[{','.join(str(int(at)) for at in place)}]" for place in places]


def _wrapper(name: str, plan: Plan, variables: list[Variable], guid: str) -> str:
    text = resources.files("shoal.export").joinpath("fmu_source.c").read_text()
    reward = ""
    if plan.sees_reward:
        reward = f"controller->state.reward[0] = (float)controller->values[{plan.num_obs}];"
    filled = {
        "IS_WHOLE": ", ".join(str(int(variable.is_whole)) for variable in variables),
        "STARTS": ", ".join(f"{variable.start:.17g}" for variable in variables),
        "GIVE_REWARD": reward,
        "SEES_REWARD": str(int(plan.sees_reward)),
        "GUID": guid,
        "BIG": name.upper(),
        "NAME": name,
    }
    for word, value in filled.items():
        text = text.replace(word, value)
    return text


def _description(request: Request, variables: list[Variable], guid: str) -> str:
    """The modelDescription.xml."""
    rows = []
    for number, variable in enumerate(variables):
        kind, causality = ("Integer" if variable.is_whole else "Real"), "output" if variable.is_output else "input"
        varies = "discrete" if variable.is_whole or variable.is_output else "continuous"
        numbers = f'start="{_text(variable.start, variable.is_whole)}"'
        for key, bound in (("min", variable.low), ("max", variable.high)):
            if np.isfinite(bound) and abs(bound) < 1e30:
                numbers += f' {key}="{_text(bound, variable.is_whole)}"'
        initial = ' initial="exact"' if variable.is_output else ""
        rows.append(
            f"  <ScalarVariable name={quoteattr(variable.name)} valueReference={quoteattr(str(number))} "
            f'causality="{causality}" variability="{varies}"{initial}><{kind} {numbers}/></ScalarVariable>'
        )
    outputs = [number for number, variable in enumerate(variables, start=1) if variable.is_output]
    unknowns = "".join(f'<Unknown index="{number}"/>' for number in outputs)
    files = "".join(f'<File name="{name}"/>' for name in (f"{request.name}.c", f"{request.name}_fmi2.c"))
    can = 'canHandleVariableCommunicationStepSize="true" canGetAndSetFMUstate="true" canSerializeFMUstate="true"'
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<fmiModelDescription fmiVersion="2.0" modelName={quoteattr(request.name)} guid="{guid}"',
            f'  description={quoteattr(request.subject.title)} generationTool="shoal" variableNamingConvention="flat">',
            f'<CoSimulation modelIdentifier="{request.name}" {can}><SourceFiles>{files}</SourceFiles></CoSimulation>',
            "<ModelVariables>",
            *rows,
            "</ModelVariables>",
            f"<ModelStructure><Outputs>{unknowns}</Outputs></ModelStructure>",
            "</fmiModelDescription>",
            "",
        ]
    )


def _text(number: float, is_whole: bool) -> str:
    return str(int(number)) if is_whole else f"{number:.17g}"


def _platform() -> str:
    """How FMI 2.0 calls this machine."""
    system = {"linux": "linux", "darwin": "darwin", "win32": "win"}.get(sys.platform, sys.platform)
    bits = "64" if sys.maxsize > 2**32 else "32"
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return system + bits
    return f"{platform.machine()}-{system}"


def _asked(request: Request, plan: Plan, variables: list[Variable], library: Path, guid: str) -> Answers:
    """What the binary answers, called as a master of the co-simulation calls it."""
    copy = library.with_suffix(".proof")  # a loaded file may not be touched any more
    shutil.copy(library, copy)
    loaded: Any = ctypes.CDLL(str(copy))
    loaded.fmi2Instantiate.restype = ctypes.c_void_p
    made = loaded.fmi2Instantiate(b"proof", 1, guid.encode(), b"", None, 0, 0)
    instance = ctypes.c_void_p(made)
    sets = _Calls(variables[: len(variables) - plan.num_action], 0, loaded.fmi2SetReal, loaded.fmi2SetInteger)
    begin = len(variables) - plan.num_action
    gets = _Calls(variables[begin:], begin, loaded.fmi2GetReal, loaded.fmi2GetInteger)
    loaded.fmi2DoStep.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_double, ctypes.c_int]
    asked, actions, seconds = request.asked, np.zeros((len(request.asked), plan.num_action)), 0.0
    for row in range(len(asked)):
        status = loaded.fmi2Reset(instance) if asked.begins[row] else 0
        numbers = asked.rows[row]
        if plan.sees_reward:
            numbers = np.append(numbers, asked.rewards[row])
        status |= sets.put(instance, numbers)
        started = time.process_time()
        status |= loaded.fmi2DoStep(instance, float(row), 1.0, 1)
        seconds += time.process_time() - started
        status |= gets.take(instance, actions[row])
        if status:
            raise ShoalError(f"the export cannot be proved: the FMU refused observation {row}")
    loaded.fmi2FreeInstance(instance)
    copy.unlink()
    return Answers(actions, None, 1e6 * seconds / len(asked))


class _Calls:
    """Setting or getting variables that follow each other, reals and integers apart."""

    def __init__(self, variables: list[Variable], first: int, real: Any, whole: Any) -> None:
        is_whole = np.array([variable.is_whole for variable in variables], bool)
        self._places = np.flatnonzero(~is_whole), np.flatnonzero(is_whole)
        self._references = [(ctypes.c_uint * len(at))(*(at + first).tolist()) for at in self._places]
        self._rooms: list[Any] = [(ctypes.c_double * len(self._places[0]))(), (ctypes.c_int * len(self._places[1]))()]
        self._functions = real, whole

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
            status |= function(instance, references, ctypes.c_size_t(len(room)), room)
        return int(status)
