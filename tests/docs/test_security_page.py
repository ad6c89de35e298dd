"""docs/security.md: its program runs, and the commands that it says take --trust do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from shoal.cli.main import COMMANDS, main

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in ("0", "1")


def test_every_command_that_may_run_a_runs_code_takes_the_word() -> None:
    named = {"evaluate", "resume", "replay", "profile", "diagnose", "model", "serve", "train", "tune", "check"}
    for name in named:
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert any("--trust" in option.opts for option in command.params), name
        assert re.search(rf"\b{name}\b", PAGE)
    assert named <= COMMANDS.keys()
