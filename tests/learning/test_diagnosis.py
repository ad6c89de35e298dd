"""`shoal diagnose` says nothing of ten runs that learn, and finds each illness in a training that has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal.reports
from shoal.cli.main import main
from shoal.runs import probing

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


@pytest.mark.repeats(0, slow=3)
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


SMALL = "train_batch_size=512"  # for many iterations in few steps
AS_THEY_ARE = "normalize_rewards=false"

SICK = [
    # what is found, environment, algorithm, steps, settings; the first ones are quick
    ("rewards clipped", "ill_env.py:Praised", "PPO", 4_000, ("clip_rewards=1",)),
    ("time limit", "ill_env.py:TimeLimited", "PPO", 4_000, ()),
    ("not begun", "CartPole-v1", "DQN", 4_000, ("learning_starts=100000",)),
    ("one dominates", "ill_env.py:OneLoud", "PPO", 4_000, ()),
    ("refused updates", "ill_env.py:Overflowing", "PPO", 4_000, ("model.fcnet_activation=relu",)),
    ("no step", "ill_env.py:Forced", "TRPO", 6_000, (SMALL,)),
    ("constant mask", "ill_env.py:FixedMask", "PPO", 4_000, ()),
    ("constant mask", "ill_env.py:Forced", "PPO", 4_000, ()),
    ("seeding", "ill_env.py:Unseeded", "PPO", 4_000, ()),
    ("endless episodes", "CliffWalking-v1", "PPO", 20_000, ()),
    ("same return", "MountainCar-v0", "PPO", 12_000, ()),
    ("no reward", "ill_env.py:NoReward", "PPO", 12_000, ()),
    ("sparse reward", "ill_env.py:RareReward", "PPO", 16_000, ()),
    ("failures", "ill_env.py:Failing", "PPO", 8_000, ()),
    ("reward scale", "ill_env.py:Dear", "PPO", 8_000, (AS_THEY_ARE,)),
    ("lost again", "ill_env.py:Wearing", "PPO", 24_000, (SMALL,)),
    ("discount", "ill_env.py:Delayed", "PPO", 16_000, ("gamma=0.9",)),
    ("few episodes", "ill_env.py:Long", "PPO", 8_000, ("train_batch_size=256", "num_envs_per_worker=1")),
    (
        "evaluation",
        "ill_env.py:Turned",
        "PPO",
        12_000,
        ("evaluation_interval=1", "evaluation_config.env_config={turned: true}", SMALL),
    ),
    ("not finite", "ill_env.py:Overflowing", "TRPO", 4_000, ("model.fcnet_activation=relu",)),
    ("large weights", "ill_env.py:Deaf", "PPO", 12_000, ("lr=100", SMALL)),
    (
        "values diverge",
        "ill_env.py:Feeding",
        "DQN",
        8_000,
        ("lr=0.01", "target_network_update_freq=1", "n_step=1", "gamma=0.999", AS_THEY_ARE),
    ),
    ("no exploration", "ill_env.py:Task", "PPO", 8_000, ("explore=false",)),
    ("KL high", "CartPole-v1", "PPO", 20_000, ("lr=0.1",)),
    ("clip binds", "ill_env.py:Adrift", "PPO", 6_000, ("lr=0.05", SMALL)),
    ("stands still", "CartPole-v1", "PPO", 24_000, ("lr=1e-9",)),
    ("lr gone", "ill_env.py:Deaf", "PPO", 12_000, ("lr_schedule=[[0, 0.001], [2000, 0]]", SMALL)),
    ("entropy gone", "ill_env.py:Deaf", "PPO", 12_000, ("lr=0.1", SMALL)),
    ("entropy full", "CartPole-v1", "PPO", 50_000, ("entropy_coeff=100",)),
    ("action spread", "ill_env.py:Adrift", "PPO", 12_000, ("entropy_coeff=1", SMALL)),
    ("epsilon gone", "ill_env.py:Deaf", "DQN", 12_000, ("exploration_config.epsilon_timesteps=100",)),
    ("small replay", "CartPole-v1", "DQN", 4_000, ("replay_buffer_config.capacity=64",)),
    ("gradients cut", "ill_env.py:Deaf", "PPO", 12_000, ("grad_clip=1e-4", SMALL)),
    ("values", "ill_env.py:Deaf", "PPO", 12_000, (SMALL,)),
    ("values clipped", "ill_env.py:Huge", "PPO", 8_000, ("vf_clip_param=1e-4", AS_THEY_ARE)),
    ("small batch", "ill_env.py:Deaf", "PPO", 4_000, ("train_batch_size=64", "sgd_minibatch_size=8")),
    ("random actions", "ill_env.py:Fragile", "PPO", 12_000, (SMALL,)),
    ("no effect", "ill_env.py:Deaf", "PPO", 8_000, ()),
    ("same observation", "ill_env.py:Blind", "PPO", 16_000, ()),
    ("observation scale", "ill_env.py:Uneven", "PPO", 8_000, ()),
    ("same answer", "ill_env.py:Offset", "PPO", 12_000, (SMALL,)),
    ("actions clipped", "ill_env.py:Adrift", "PPO", 12_000, ("entropy_coeff=1", SMALL)),
    ("unused actions", "ill_env.py:Indifferent", "PPO", 12_000, ("lr=0.1", SMALL)),
    ("reward outliers", "ill_env.py:Huge", "PPO", 8_000, (AS_THEY_ARE,)),
]


@pytest.mark.repeats(4, slow=6)
@pytest.mark.parametrize(("name", "env", "algorithm", "steps", "settings"), SICK)
def test_a_sick_run_has_its_illness(
    tmp_path: Path, name: str, env: str, algorithm: str, steps: int, settings: tuple[str, ...]
) -> None:
    place = f"{SHARED}/{env}" if ".py:" in env else env
    train = ["train", place, "--run", algorithm, "--stop", f"timesteps_total={steps}", "--results-dir", str(tmp_path)]
    for setting in settings:
        train += ["--set", f"config.{setting}"]
    done = CliRunner().invoke(main, train)
    assert done.exit_code == 0, done.output
    [run] = tmp_path.glob(f"*/{algorithm}_*")
    result = CliRunner().invoke(main, ["diagnose", str(run), "--json"])
    found = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert name in found
    remedy = found[name]["remedy"]
    assert remedy
    for setting in re.findall(r"--set (config\.[^\s,;]+)", remedy):
        tried = CliRunner().invoke(main, [*train, "--set", setting, "--dry-run"])
        assert tried.exit_code == 0, f"{remedy}: {tried.output}"


def test_every_finding_has_such_a_training() -> None:
    sources = [*Path(shoal.reports.__file__).parent.glob("symptoms_*.py"), Path(probing.__file__)]
    told = {name for path in sources for name in re.findall(r'Finding\(\s*"([\w ]+)"', path.read_text())}
    assert {name for name, *_ in SICK} == told | {"seeding"}
    assert len(told) >= 40
