"""docs/cases.md: its class, with the methods for resuming and without them, trains by its commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cases.md").read_text()
SHORT = "--stop training_iteration=1 --set train_batch_size=50 --results-dir results"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("with_states", [False, True])
def test_the_class_of_the_page_trains(with_states: bool, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/simulators/case", tmp_path, dirs_exist_ok=True)
    written, methods = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "burgers_env.py").write_text(f"{written}\n{methods}" if with_states else written)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    build, train = re.findall(r"^ {4}((?:cc|shoal) .*)$", PAGE, re.MULTILINE)
    for line in (build, f"{train} {SHORT}"):
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
    assert "Finished" in done.stdout
