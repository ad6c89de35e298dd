"""The Fortran solver of the example learns its controller, and then runs it without Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gfortran") is None, reason="there is no Fortran compiler")
def test_a_solver_learns_its_controller_and_runs_it_alone(tmp_path: Path) -> None:
    for name in ("fortran_controller", "simulators"):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "shoal").write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal "$@"\n')
    (programs / "shoal").chmod(0o755)
    folder = tmp_path / "fortran_controller"
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["make", "train", "STEPS=12000"], cwd=folder, env=environ, check=True)
    subprocess.run(["make", "run_rod"], cwd=folder, env=environ, check=True)
    assert (folder / "controller/controller.fortran.proof.json").is_file()
    alone = subprocess.run([folder / "run_rod"], env={}, capture_output=True, text=True, check=True)
    controlled, constant = map(float, re.findall(r"sum of errors.*:\s+([\d.]+)", alone.stdout))
    assert controlled < 0.8 * constant
