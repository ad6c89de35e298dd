"""How an FMU describes itself: modelDescription.xml and the names of platforms, in FMI 2.0 and in 3.0."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

import numpy as np

from shoal.export.fmu_variables import Variable

HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
STEPS = 'canHandleVariableCommunicationStepSize="true"'


def description_of_fmi2(
    name: str, title: str, variables: Sequence[Variable], guid: str, sources: Sequence[str]
) -> dict[str, str]:
    """The files that describe an FMU of FMI 2.0, by their places in it."""
    rows = []
    for number, variable in enumerate(variables):
        kind = "Integer" if variable.is_whole else "Real"
        row = f"  <ScalarVariable {_common(variable, number)}><{kind} {_numbers(variable)}/></ScalarVariable>"
        rows.append(row)
    outputs = [number for number, variable in enumerate(variables, start=1) if variable.is_output]
    unknowns = "".join(f'<Unknown index="{number}"/>' for number in outputs)
    files = "".join(f"<File name={quoteattr(source)}/>" for source in sources)
    can = f'{STEPS} canGetAndSetFMUstate="true" canSerializeFMUstate="true"'
    lines = [
        HEAD,
        f'<fmiModelDescription fmiVersion="2.0" modelName={quoteattr(name)} guid="{guid}"',
        f'  description={quoteattr(title)} generationTool="shoal" variableNamingConvention="flat">',
        f'<CoSimulation modelIdentifier="{name}" {can}><SourceFiles>{files}</SourceFiles></CoSimulation>',
        "<ModelVariables>",
        *rows,
        "</ModelVariables>",
        f"<ModelStructure><Outputs>{unknowns}</Outputs></ModelStructure>",
        "</fmiModelDescription>",
        "",
    ]
    return {"modelDescription.xml": "\n".join(lines)}


def description_of_fmi3(
    name: str, title: str, variables: Sequence[Variable], guid: str, sources: Sequence[str]
) -> dict[str, str]:
    """The files that describe an FMU of FMI 3.0, by their places in it; time is a variable there, the last."""
    rows = []
    for number, variable in enumerate(variables):
        kind = "Int32" if variable.is_whole else "Float64"
        rows.append(f"  <{kind} {_common(variable, number)} {_numbers(variable)}/>")
    time = f'name="time" valueReference="{len(variables)}" causality="independent" variability="continuous"'
    outputs = [number for number, variable in enumerate(variables) if variable.is_output]
    can = f'{STEPS} canGetAndSetFMUState="true" canSerializeFMUState="true"'
    lines = [
        HEAD,
        f'<fmiModelDescription fmiVersion="3.0" modelName={quoteattr(name)} instantiationToken="{guid}"',
        f'  description={quoteattr(title)} generationTool="shoal" variableNamingConvention="flat">',
        f'<CoSimulation modelIdentifier="{name}" {can}/>',
        "<ModelVariables>",
        *rows,
        f'  <Float64 {time} description="Simulation time"/>',
        "</ModelVariables>",
        "<ModelStructure>",
        *(f'  <Output valueReference="{number}"/>' for number in outputs),
        "</ModelStructure>",
        "</fmiModelDescription>",
        "",
    ]
    files = "".join(f"<SourceFile name={quoteattr(source)}/>" for source in sources)
    build = [
        HEAD,
        f'<fmiBuildDescription fmiVersion="3.0"><BuildConfiguration modelIdentifier="{name}">',
        f'<SourceFileSet language="C99">{files}</SourceFileSet>',
        "</BuildConfiguration></fmiBuildDescription>",
        "",
    ]
    return {"modelDescription.xml": "\n".join(lines), "sources/buildDescription.xml": "\n".join(build)}


def platform_of_fmi2() -> str:
    """How FMI 2.0 calls this machine."""
    system = {"linux": "linux", "darwin": "darwin", "win32": "win"}.get(sys.platform, sys.platform)
    bits = "64" if sys.maxsize > 2**32 else "32"
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return system + bits
    return f"{platform.machine()}-{system}"


def platform_of_fmi3() -> str:
    """How FMI 3.0 calls this machine."""
    system = {"win32": "windows"}.get(sys.platform, sys.platform)
    machine = {"AMD64": "x86_64", "i686": "x86", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return f"{machine}-{system}"


def _common(variable: Variable, number: int) -> str:
    """What both versions say of a variable in the same words."""
    causality = "output" if variable.is_output else "input"
    varies = "discrete" if variable.is_whole or variable.is_output else "continuous"
    initial = ' initial="exact"' if variable.is_output else ""
    name = quoteattr(variable.name)
    return f'name={name} valueReference="{number}" causality="{causality}" variability="{varies}"{initial}'


def _numbers(variable: Variable) -> str:
    """Start and bounds."""
    numbers = f'start="{_text(variable.start, variable.is_whole)}"'
    for key, bound in (("min", variable.low), ("max", variable.high)):
        if np.isfinite(bound) and abs(bound) < 1e30:
            numbers += f' {key}="{_text(bound, variable.is_whole)}"'
    return numbers


def _text(number: float, is_whole: bool) -> str:
    return str(int(number)) if is_whole else f"{number:.17g}"
