"""The programs of docs/spaces.md and docs/models.md run, and their experiment is one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.model import ModelConfig

DOCS = Path(__file__).parents[2] / "docs"
MODELS = (DOCS / "models.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", (DOCS / "spaces.md").read_text() + MODELS, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: re.search(r"class (\w+)|(by hand|env.step)", text)[0])
def test_the_programs_run(program: str, tmp_path: Path) -> None:
    if "Doors" not in program:  # masks alone need no PyTorch
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_the_experiment_and_the_keys_of_models_are_there(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", MODELS, re.MULTILINE | re.DOTALL)
    (tmp_path / "repeat.yml").write_text(text)
    (experiment,) = experiments_from_file(tmp_path / "repeat.yml")
    assert experiment.config.model.memory == "use_lstm"
    table = [line.split("|")[1] for line in MODELS.splitlines() if line.startswith("| `")]
    keys = {key for cell in table for key in re.findall(r"`(\w+)`", cell)}
    assert {"use_lstm", "use_attention", "max_seq_len"} <= keys <= set(ModelConfig.model_fields)
