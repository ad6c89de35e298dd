"""Results and settings as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.config.ppo import PPOConfig
from shoal.runs.printing import pretty_print


def test_a_result() -> None:
    result = {
        "timesteps_total": 2048,
        "learner": {"kl": np.float64(0.5), "inner": {"deep": True}},
        "episode_rewards": np.array([1.0, 2.0]),
        "nothing": None,
        "empty": {},
        "list": [{"a": None, "b": 1}, None],
    }
    assert pretty_print(result).splitlines() == [
        "empty: {}",
        "episode_rewards: [1.0, 2.0]",
        "learner:",
        "  inner:",
        "    deep: true",
        "  kl: 0.5",
        "list: [{b: 1}, null]",
        "timesteps_total: 2048",
    ]


def test_a_config() -> None:
    text = pretty_print(PPOConfig(env=Path))
    assert f"env: {Path.__module__}:Path" in text
    assert "  fcnet_hiddens: [64, 64]" in text
    assert pretty_print(PPOConfig(env=Path).model_dump()) == text
    assert pretty_print(3) == "3"
