"""`--format fmu`: a co-simulation FMU around the C source, with its binary where a compiler is."""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from shoal.export.c_export import write_c
from shoal.export.compiling import C_FLAGS, c_compiler, no_compiler, run, version_of
from shoal.export.fmu_description import description_of_fmi2, description_of_fmi3, platform_of_fmi2, platform_of_fmi3
from shoal.export.fmu_proof import asked_fmu
from shoal.export.fmu_variables import Variable, variables_of
from shoal.export.made import Made, Request
from shoal.export.plan import Plan, refusal

MOST_VARIABLES = 2000


@dataclass(frozen=True)
class Standard:
    """What a version of FMI has its own way for."""

    describe: Callable[[str, str, Sequence[Variable], str, Sequence[str]], dict[str, str]]
    platform: Callable[[], str]


STANDARDS = {
    "2.0": Standard(description_of_fmi2, platform_of_fmi2),
    "3.0": Standard(description_of_fmi3, platform_of_fmi3),
}


def make_fmu(request: Request) -> Made:
    """An FMU."""
    plan = request.subject.plan("fmu")
    if plan.num_obs + plan.num_action > MOST_VARIABLES:
        raise refusal(
            "fmu", f"observations of {plan.num_obs:,} numbers, and an FMU has a variable for each", "c, or onnx"
        )
    standard = STANDARDS[request.fmi_version]
    variables = variables_of(plan)
    sources = write_c(request, plan)
    guid = "{" + hashlib.sha256(sources[1].read_bytes()).hexdigest()[:32] + "}"
    wrapper = request.folder / f"{request.name}_fmi{request.fmi_version[0]}.c"
    wrapper.write_text(_wrapper(request, plan, variables, guid))
    sources.append(wrapper)
    file, compiler = request.folder / f"{request.name}.fmu", c_compiler()
    answers, place = None, standard.platform()
    library = request.folder / f"{request.name}.{'dylib' if sys.platform == 'darwin' else 'so'}"
    if compiler is not None:
        flags = (*C_FLAGS, "-fPIC", "-shared", "-fvisibility=hidden")
        run([*compiler, *flags, "-o", library, sources[1], wrapper, "-lm"], request.folder)
        answers = asked_fmu(request.fmi_version, request.asked, plan, variables, library, guid)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        names = [source.name for source in sources if source.suffix == ".c"]
        described = standard.describe(request.name, request.subject.title, variables, guid, names)
        for path, text in described.items():
            archive.writestr(path, text)
        for source in sources:
            archive.write(source, f"sources/{source.name}")
        if compiler is not None:
            archive.write(library, f"binaries/{place}/{library.name}")
    for left in (*sources, library):
        left.unlink(missing_ok=True)
    if compiler is None:
        notes = {"fmi": request.fmi_version, "platform": None}  # which holds sources alone
        return Made([file], None, "", no_compiler("C", "CC"), notes)
    return Made([file], answers, version_of(compiler), notes={"fmi": request.fmi_version, "platform": place})


def _wrapper(request: Request, plan: Plan, variables: list[Variable], guid: str) -> str:
    """The C source of the FMU's functions, around the policy's own."""
    version = request.fmi_version
    files = ("fmu_controller.c", f"fmi{version[0]}_functions.c")
    text = "".join(resources.files("shoal.export").joinpath(file).read_text() for file in files)
    reward = ""
    if plan.sees_reward:
        reward = f"controller->state.reward[0] = (float)controller->values[{plan.num_obs}];"
    filled = {
        "IS_WHOLE": ", ".join(str(int(variable.is_whole)) for variable in variables),
        "STARTS": ", ".join(f"{variable.start:.17g}" for variable in variables),
        "GIVE_REWARD": reward,
        "SEES_REWARD": str(int(plan.sees_reward)),
        "VERSION": version,
        "GUID": guid,
        "BIG": request.name.upper(),
        "NAME": request.name,
    }
    words = re.compile("|".join(filled))  # all at once: a name may hold any of the words
    return words.sub(lambda found: filled[found[0]], text)
