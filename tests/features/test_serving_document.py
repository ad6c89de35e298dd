"""schemathesis tries what the OpenAPI document allows and what it does not, and finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

pytest.importorskip("uvicorn")
pytest.importorskip("schemathesis")
from serving import TOKEN, serving, source

SMALL = {"train_batch_size": 32, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 32}


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    sources = []
    for name, env in (("pole", "CartPole-v1"), ("cards", "Blackjack-v1")):
        with shoal.PPO(env=env, config={**SMALL, "model": {"fcnet_hiddens": [8]}}) as trainer:
            trainer.save(tmp_path / name)
        sources.append(source(tmp_path / name, name))
    with serving(sources) as service:
        command = [
            *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
            *("run", f"http://127.0.0.1:{service.port}/openapi.json", "-H", f"Authorization: Bearer {TOKEN}"),
            *("--max-examples", "25", "--seed", "1", "--no-color", "--generation-database", "none"),
        ]
        home = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, check=False)
        answered = dict(service.metrics.requests.values)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "No issues found" in done.stdout
    statuses = {labels[0][1]: count for labels, count in answered.items()}
    assert statuses["200"] > 50
    assert statuses["422"] > 50, "what the document does not allow was tried too"
    assert "500" not in statuses
