"""What docs/export.md says of formats is so, and its snippets run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exported_policies import POLICIES

from shoal.cli.export import FORMATS as TYPED
from shoal.export.exporting import FORMATS, export

PAGE = (Path(__file__).parents[2] / "docs/export.md").read_text()


def snippet(language: str, begins: str = "") -> str:
    (text,) = re.findall(rf"^```{language}\n({begins}.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


def test_the_page_and_the_command_have_every_format() -> None:
    assert tuple(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == TYPED == tuple(FORMATS)


def test_the_python_snippet_acts(tmp_path: Path) -> None:
    export(POLICIES["filtered"](), "numpy", tmp_path / "controller.py")
    program = "obs = [0.1, 0.2, 0.3, 0.4]\n" + snippet("python", "from controller") + "assert action in (-1, 0, 1)\n"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.slow
def test_the_snippet_of_pytorch_acts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    export(POLICIES["filtered"](), "torch_export", tmp_path / "controller.pt2")
    program = snippet("python", "import torch") + "assert action.shape == (3,)\n"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.slow
def test_the_c_snippet_acts(tmp_path: Path) -> None:
    export(POLICIES["filtered"](), "c", tmp_path / "controller")
    include, _, rest = snippet("c").partition("\n")
    (tmp_path / "main.c").write_text(
        f"{include}\nint main(void) {{\n{rest}\nreturn action[0] < -1 || action[0] > 1;\n}}\n"
    )
    files = ["main.c", "controller/controller.c"]
    subprocess.run(["cc", "-std=c99", "-Icontroller", "-o", "main", *files, "-lm"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)


@pytest.mark.skipif(shutil.which("gfortran") is None, reason="there is no Fortran compiler")
@pytest.mark.slow
def test_the_fortran_snippet_acts_when_built_as_the_page_says(tmp_path: Path) -> None:
    export(POLICIES["filtered"](), "fortran", tmp_path / "controller")
    end = "if (abs(action(1)) > 1) error stop\n"
    (tmp_path / "solver.f90").write_text(f"program solver\n{snippet('fortran')}{end}end program\n")
    for line in re.findall(r"^ {4}((?:cc|gfortran) .*)$", PAGE, re.MULTILINE):
        subprocess.run(line, shell=True, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "solver"], check=True)
