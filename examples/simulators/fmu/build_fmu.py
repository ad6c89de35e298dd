"""Builds heater.fmu from heater.c: python3 build_fmu.py [2.0|3.0] [FILE]. It needs a C compiler and nothing else."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
VARIABLES = [
    ("u", 0, 'causality="input" variability="continuous"', 'start="0" min="0" max="1"'),
    ("T", 1, 'causality="output" variability="continuous" initial="exact"', 'start="15" min="-50" max="100"'),
    ("capacity", 2, 'causality="parameter" variability="fixed"', 'start="10"'),
    ("outside", 3, 'causality="parameter" variability="fixed"', 'start="5"'),
]


def description(version):
    """The modelDescription.xml of either version."""
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    if version == "2.0":
        rows = "".join(
            f'<ScalarVariable name="{name}" valueReference="{number}" {kind}><Real {numbers}/></ScalarVariable>'
            for name, number, kind, numbers in VARIABLES
        )
        rest = '<ModelStructure><Outputs><Unknown index="2"/></Outputs></ModelStructure>'
        opening = '<fmiModelDescription fmiVersion="2.0" modelName="heater" guid="{heater}">'
        state = "FMUstate"
    else:
        rows = "".join(
            f'<Float64 name="{name}" valueReference="{number}" {kind} {numbers}/>'
            for name, number, kind, numbers in VARIABLES
        )
        rest = '<ModelStructure><Output valueReference="1"/></ModelStructure>'
        opening = '<fmiModelDescription fmiVersion="3.0" modelName="heater" instantiationToken="{heater}">'
        state = "FMUState"
    can = f'canGetAndSet{state}="true" canSerialize{state}="true"'
    simulation = f'<CoSimulation modelIdentifier="heater" canHandleVariableCommunicationStepSize="true" {can}/>'
    return f"{head}{opening}{simulation}<ModelVariables>{rows}</ModelVariables>{rest}</fmiModelDescription>\n"


def build(version, target, source=HERE / "heater.c"):
    """Compile and pack."""
    platform = {"2.0": "linux64", "3.0": "x86_64-linux"}[version]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "heater.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("modelDescription.xml", description(version))
            archive.write(library, f"binaries/{platform}/heater.so")


if __name__ == "__main__":
    build(sys.argv[1] if len(sys.argv) > 1 else "2.0", sys.argv[2] if len(sys.argv) > 2 else "heater.fmu")
