"""The keys of environments in processes of their own: what they imply and what they exclude."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config.ppo import PPOConfig
from shoal.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "isolates"),
    [
        ({}, False),
        ({"env_isolation": "none"}, False),
        ({"env_isolation": "process"}, True),
        ({"env_step_timeout_s": 3}, True),
        ({"env_reset_timeout_s": 0.5}, True),
        ({"env_memory_limit_mb": 500}, True),
    ],
)
def test_a_limit_means_a_process(given: dict[str, Any], isolates: bool) -> None:
    assert PPOConfig(**given).isolates_envs is isolates


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"env_isolation": "none", "env_step_timeout_s": 3},
            "config.env_step_timeout_s: .* say env_isolation: process",
        ),
        ({"env_isolation": "none", "env_memory_limit_mb": 300}, "config.env_memory_limit_mb"),
        ({"env_memory_limit_mb": 20}, "at least 100"),
        ({"env_restart_delay_s": 1}, "config.env_restart_delay_s: .* say env_isolation: process"),
        ({"env_step_timeout_s": 0}, "config.env_step_timeout_s"),
        ({"env_isolation": "thread"}, "config.env_isolation"),
    ],
)
def test_what_cannot_be_had_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PPOConfig(**given)
