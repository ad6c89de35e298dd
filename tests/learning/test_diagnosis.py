"""`shoal diagnose` says nothing of ten runs that learn, and what is wrong with some that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import main

SHARED = Path(__file__).parents[1] / "shared"
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
    ("no reward", "ill_env.py:NoReward", "PPO", 12_000, ()),
    ("sparse reward", "ill_env.py:RareReward", "PPO", 16_000, ()),
    ("failures", "ill_env.py:Failing", "PPO", 8_000, ()),
    ("same observation", "ill_env.py:Blind", "PPO", 16_000, ()),
    ("no effect", "ill_env.py:Deaf", "PPO", 8_000, ()),
    ("observation scale", "ill_env.py:Uneven", "PPO", 8_000, ()),
    ("seeding", "ill_env.py:Unseeded", "PPO", 4_000, ()),
    ("constant mask", "ill_env.py:FixedMask", "PPO", 4_000, ()),
    ("reward outliers", "ill_env.py:Huge", "PPO", 8_000, ("config.normalize_rewards=false",)),
    ("one dominates", "ill_env.py:Huge", "PPO", 8_000, ("config.normalize_rewards=false",)),
    (
        "values clipped",
        "ill_env.py:Huge",
        "PPO",
        8_000,
        ("config.vf_clip_param=1e-4", "config.normalize_rewards=false"),
    ),
    ("rewards clipped", "ill_env.py:Praised", "PPO", 4_000, ("config.clip_rewards=1",)),
    ("few episodes", "ill_env.py:Long", "PPO", 8_000, ("config.train_batch_size=256", "config.num_envs_per_worker=1")),
    ("time limit", "ill_env.py:TimeLimited", "PPO", 4_000, ()),
    ("no exploration", "ill_env.py:Task", "PPO", 8_000, ("config.explore=false",)),
    ("small batch", "ill_env.py:Deaf", "PPO", 4_000, ("config.train_batch_size=64", "config.sgd_minibatch_size=8")),
    (
        "lr gone",
        "ill_env.py:Deaf",
        "PPO",
        12_000,
        ("config.train_batch_size=512", "config.lr_schedule=[[0, 0.001], [2000, 0]]"),
    ),
    ("epsilon gone", "ill_env.py:Deaf", "DQN", 12_000, ("config.exploration_config.epsilon_timesteps=100",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env", "algorithm", "steps", "sets"), SICK)
def test_a_sick_run_has_its_illness(
    tmp_path: Path, name: str, env: str, algorithm: str, steps: int, sets: tuple[str, ...]
) -> None:
    place = f"{SHARED}/{env}" if ".py:" in env else env
    train = ["train", place, "--run", algorithm, "--stop", f"timesteps_total={steps}", "--results-dir", str(tmp_path)]
    done = CliRunner().invoke(main, [*train, *(word for key in sets for word in ("--set", key))])
    assert done.exit_code == 0, done.output
    [run] = tmp_path.glob(f"*/{algorithm}_*")
    result = CliRunner().invoke(main, ["diagnose", str(run), "--json"])
    assert name in [finding["check"] for finding in json.loads(result.stdout)]
