"""`shoal diagnose` says nothing of ten runs that learn, and what is wrong with some that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main

HEALTHY = [
    ("CartPole-v1", "PPO", 40_000),
    ("CartPole-v1", "TRPO", 40_000),
    ("CartPole-v1", "DQN", 20_000),
    ("Pendulum-v1", "PPO", 60_000),
    ("Acrobot-v1", "PPO", 60_000),
    ("FrozenLake-v1", "PPO", 40_000),
    ("LunarLander-v3", "PPO", 60_000),
    ("LunarLander-v3", "DQN", 30_000),
    ("MountainCarContinuous-v0", "PPO", 60_000),
    ("Blackjack-v1", "PPO", 20_000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("env", "algorithm", "steps"), HEALTHY)
def test_a_healthy_run_has_nothing_suspicious(tmp_path: Path, env: str, algorithm: str, steps: int) -> None:
    where = ["--results-dir", str(tmp_path)]
    train = ["train", env, "--run", algorithm, "--stop", f"timesteps_total={steps}", *where]
    done = CliRunner().invoke(main, train)
    assert done.exit_code == 0, done.output
    result = CliRunner().invoke(main, ["diagnose", env, *where])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) == 4, result.output
    assert result.output.splitlines()[-1] == "Nothing suspicious."


SICK = [
    ("endless episodes", "CliffWalking-v1", "PPO", 20_000, ()),
    ("same return", "MountainCar-v0", "PPO", 12_000, ()),
    ("KL high", "CartPole-v1", "PPO", 20_000, ("config.lr=0.1",)),
    ("stands still", "CartPole-v1", "PPO", 24_000, ("config.lr=1e-9",)),
    ("small replay", "CartPole-v1", "DQN", 4_000, ("config.replay_buffer_config.capacity=64",)),
    ("entropy full", "CartPole-v1", "PPO", 50_000, ("config.entropy_coeff=100",)),
    ("not begun", "CartPole-v1", "DQN", 4_000, ("config.learning_starts=100000",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env", "algorithm", "steps", "sets"), SICK)
def test_a_sick_run_has_its_illness(
    tmp_path: Path, name: str, env: str, algorithm: str, steps: int, sets: tuple[str, ...]
) -> None:
    where = ["--results-dir", str(tmp_path)]
    train = ["train", env, "--run", algorithm, "--stop", f"timesteps_total={steps}", *where]
    done = CliRunner().invoke(main, [*train, *(word for key in sets for word in ("--set", key))])
    assert done.exit_code == 0, done.output
    result = CliRunner().invoke(main, ["diagnose", env, *where, "--json"])
    assert name in [finding["check"] for finding in json.loads(result.stdout)]
