"""The programs of docs/environments.md, docs/spaces.md and docs/models.md run, and their experiments are such."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.config.experiment import experiments_from_file
from shoal.config.model import ModelConfig
from shoal.config.wrappers import parse_wrap
from shoal.envs.wrapping import REFUSED, wrappings

DOCS = Path(__file__).parents[2] / "docs"
MODELS = (DOCS / "models.md").read_text()
ENVIRONMENTS = (DOCS / "environments.md").read_text()
PAGES = ENVIRONMENTS + (DOCS / "spaces.md").read_text() + MODELS
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)


@pytest.mark.repeats(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: re.search(r"class (\w+)|(by hand|env.step)", text)[0])
def test_the_programs_run(program: str, tmp_path: Path) -> None:
    if not any(name in program for name in ("Doors", "Room", "Drift")):  # masks alone need no PyTorch
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_the_wrappers_of_the_file_are_those_of_the_command_line(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", ENVIRONMENTS, re.MULTILINE | re.DOTALL)
    (tmp_path / "maze.yml").write_text(text)
    (experiment,) = experiments_from_file(tmp_path / "maze.yml")
    (line,) = re.findall(r"^ {4}(shoal train .*--wrap.*)$", ENVIRONMENTS, re.MULTILINE)
    words = shlex.split(line)
    typed = [parse_wrap(words[place + 1]) for place, word in enumerate(words) if word == "--wrap"]
    assert list(experiment.config.wrappers) == typed
    assert wrappings(typed)
    refused = re.findall(r"^\| (`Autoreset`.*|`N.*|`Record.*) \|.*\|$", ENVIRONMENTS, re.MULTILINE)
    assert set(REFUSED) <= {name for row in refused for name in re.findall(r"`(\w+)`", row)}


def test_the_experiment_and_the_keys_of_models_are_there(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", MODELS, re.MULTILINE | re.DOTALL)
    (tmp_path / "repeat.yml").write_text(text)
    (experiment,) = experiments_from_file(tmp_path / "repeat.yml")
    assert experiment.config.model.memory == "use_lstm"
    table = [line.split("|")[1] for line in MODELS.splitlines() if line.startswith("| `")]
    keys = {key for cell in table for key in re.findall(r"`(\w+)`", cell)}
    assert {"use_lstm", "use_attention", "max_seq_len"} <= keys <= set(ModelConfig.model_fields)
