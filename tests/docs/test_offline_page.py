"""What docs/offline.md and docs/ray_train.md say is so: columns, code, commands, and every word of the article."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import shoal
from shoal.config.offline import SCALERS, OfflineConfig
from shoal.runs.recorded_inputs import OFFLINE_STOP

ROOT = Path(__file__).parents[2]
OFFLINE, RAY_TRAIN = ((ROOT / "docs" / page).read_text() for page in ("offline.md", "ray_train.md"))
SHOAL = str(Path(sys.executable).with_name("shoal"))
PLACES = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", OFFLINE + RAY_TRAIN)
ARTICLE = """
Ray also comes with the Ray Train library, which provides an extensive suite of machine learning training integrations
and allows them to scale seamlessly. Machine learning often requires a lot of heavy computation. It might take too long
to finish training. Training can be accelerated by processing data with increased throughput. Some machine learning
models, such as neural networks, can parallelize parts of the computation process to speed up training (this applies
specifically to the gradient computation in neural networks). Ray Train is a library for distributed training on Ray.
It offers key tools for different parts of the training workflow, from feature processing, to scalable training, to
integrations with ML tracking tools, to export mechanisms for models. In a typical ML pipeline you will use
the following key components of Ray Train: Preprocessors: process dataset objects into
consumable features for trainers. Trainers: wrapper classes around third-party training frameworks. Models: each
trainer can produce a model.
"""


def test_every_word_of_the_article_has_its_row() -> None:
    quoted = re.findall(r'^\| "(.*?)" \| \S', RAY_TRAIN, re.MULTILINE)
    assert " ".join(quoted).split() == ARTICLE.split()


@pytest.mark.parametrize(
    ("file", "name"), sorted({(f, n) for f, names in PLACES for n in re.findall(r"`([\w.]+)`", names)})
)
def test_the_code_that_the_pages_point_at_is_there(file: str, name: str) -> None:
    nodes: list[ast.stmt] = ast.parse((ROOT / "src" / "shoal" / file).read_text()).body
    for part in name.split("."):
        (found,) = (node for node in nodes if getattr(node, "name", None) == part)
        nodes = getattr(found, "body", [])


def test_the_columns_and_numbers_are_those_of_the_code(tmp_path: Path) -> None:
    with shoal.PPO("CartPole-v1", {"output": str(tmp_path), "train_batch_size": 64}) as trainer:
        trainer.train()
    frame = pd.read_parquet(tmp_path)
    assert re.findall(r"^\| `(\w+)` \|", OFFLINE, re.MULTILINE) == frame.columns.tolist()
    assert isinstance(frame.obs[0], np.ndarray)
    config = OfflineConfig()
    assert f"`train_batch_size` steps ({config.train_batch_size:,})" in OFFLINE
    assert f"`sgd_minibatch_size` ({config.sgd_minibatch_size})" in OFFLINE
    assert f"ends after {OFFLINE_STOP['learner/num_epochs']:g} passes" in OFFLINE
    assert all(f"`{name}`" in page or f"[{name}]" in page for page in (OFFLINE, RAY_TRAIN) for name in SCALERS)


@pytest.mark.slow
def test_the_commands_run_as_they_are_typed(tmp_path: Path) -> None:
    lines = re.findall(r"^ {4}(shoal .*)$", OFFLINE + RAY_TRAIN, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        typed = [*shlex.split(line)[1:], *(["--stop", "training_iteration=1"] if "--num-workers" in line else [])]
        done = subprocess.run(
            [SHOAL, *typed],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    frame = pd.read_parquet(tmp_path / "steps")
    assert len(frame) >= 20_000
