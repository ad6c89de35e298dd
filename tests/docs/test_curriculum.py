"""The page on curricula is so: its files train, and its function is one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "curriculum.md").read_text()


@pytest.mark.slow
def test_the_experiment_of_the_page_trains(tmp_path: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        name = re.match(r"# (\S+)\n", block)
        (tmp_path / (name[1] if name else "my_module.py")).write_text(block)
    (experiment,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "throw.yml").write_text(experiment)
    command = [sys.executable, "-m", "shoal", "train", "-f", "throw.yml", "--stop", "timesteps_total=8000"]
    for name, extra in (
        ("stages", []),
        ("function", ["--set", "config.curriculum.stages=[]", "--set", "config.env_task_fn=my_module.curriculum_fn"]),
    ):
        words = [*command, *extra, "--name", name, "--results-dir", str(tmp_path)]
        done = subprocess.run(
            words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stderr
        (lines,) = (tmp_path / name).glob("*/result.json")
        last = json.loads(lines.read_text().splitlines()[-1])
        assert {"miss_mean", "miss_min", "miss_max", "strength_mean", "distance_left"} <= last["custom_metrics"].keys()
        assert "task" in last
