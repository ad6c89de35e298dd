"""docs/fmu.md: its commands build and train an FMU, and its file is that experiment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fmpy", reason="FMPy is not installed")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fmu.md").read_text()
SHORT = "--stop training_iteration=1 --set train_batch_size=200 --results-dir results"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_commands_of_the_page_end_well(tmp_path: Path) -> None:
    for name in ("build_fmu.py", "heater.c"):
        shutil.copy(ROOT / "examples/simulators/fmu" / name, tmp_path)
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "heater.yml").write_text(block)
    install, build, *trainings = re.findall(r"^ {4}((?:pip|python3|shoal) .*)$", PAGE, re.MULTILINE)
    (extra,) = re.findall(r"pip install 'shoal-rl\[(\w+)\]'", install)
    assert re.search(rf"^{extra} = \[.*fmpy", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.IGNORECASE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert len(trainings) == 2
    for line in (build, *(f"{training} {SHORT}" for training in trainings)):
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert line == build or "Finished" in done.stdout
