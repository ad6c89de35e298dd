"""A simulator that ends the process of a run leaves no word; who looks at the run afterwards is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from shoal.cli.main import main

ENDING = f"{Path(__file__).parent / 'ending_env.py'}:Ending"


def test_incidents_and_the_next_start_say_that_the_process_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "train", ENDING, "--results-dir", str(tmp_path)]
    command += ["--stop", "training_iteration=1"]
    first = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert first.returncode == 7
    [folder] = [place.parent for place in tmp_path.glob("*/*/experiment.json")]
    told = CliRunner().invoke(main, ["incidents", str(folder)], prog_name="shoal")
    assert told.exit_code == 0
    again = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    for text in (told.output, again.stdout + again.stderr):
        assert "disappeared without a word" in text
        assert "env_isolation: process survives" in text
