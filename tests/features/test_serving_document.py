"""schemathesis tries what the OpenAPI document allows and what it does not, and finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal

pytest.importorskip("uvicorn")
pytest.importorskip("schemathesis")
from serving import TOKEN, serving, source

SMALL = {"train_batch_size": 32, "num_envs_per_worker": 1, "num_sgd_iter": 1, "sgd_minibatch_size": 32}
MEMORY = {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}


class Doors(gymnasium.Env):
    """Some doors are locked."""

    observation_space = spaces.Dict(
        action_mask=spaces.Box(0, 1, (4,), np.int8),
        seen=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1)]),
    )
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, True, {}

    def _obs(self) -> Any:
        return {"action_mask": np.array([1, 0, 1, 1], np.int8), "seen": (np.zeros(2, np.float32), 1)}


# The first step of a session may lack what all others need, and no schema can tell which step one is.
EXCEPT = """
[[operations]]
include-operation-id = "remembering_actions"
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.enabled = false
"""


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sources = []
    for name, env in (("pole", "CartPole-v1"), ("cards", "Blackjack-v1")):
        with shoal.PPO(env=env, config={**SMALL, "model": {"fcnet_hiddens": [8]}}) as trainer:
            trainer.save(tmp_path / name)
        sources.append(source(tmp_path / name, name))
    with shoal.PPO(env=Doors, config={**SMALL, "model": {"fcnet_hiddens": [8]}}) as trainer:
        trainer.save(tmp_path / "doors")
    sources.append(source(tmp_path / "doors", "doors"))
    with shoal.PPO(env="Pendulum-v1", config={**SMALL, "model": {"fcnet_hiddens": [8], **MEMORY}}) as trainer:
        trainer.save(tmp_path / "remembering")
    sources.append(source(tmp_path / "remembering", "remembering"))
    (tmp_path / "schemathesis.toml").write_text(EXCEPT)
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
    assert "Failures:" not in done.stdout
    assert "Errors:" not in done.stdout
    statuses = {labels[0][1]: count for labels, count in answered.items()}
    assert statuses["200"] > 50
    assert statuses["201"] > 5, "sessions were begun"
    assert statuses["204"] > 0, "and ended"
    assert statuses["422"] > 50, "what the document does not allow was tried too"
    assert "500" not in statuses
