"""Policies of RLlib's new API stack as ordinary runs: they act as the originals, and none of their pickles is run."""

from __future__ import annotations

import base64
import pickle
import shutil
import zlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.bridges.foreign_policy import import_policy
from shoal.bridges.rllib_states import MODULES, read_rllib

MODELS = Path(__file__).parents[2] / "foreign_models"
CASES = {
    "rllib_ppo_cartpole": ("CartPole-v1", "PPO"),
    "rllib_ppo_pendulum": ("Pendulum-v1", "PPO"),
    "rllib_ppo_filtered": ("Pendulum-v1", "PPO"),
    "rllib_dqn_cartpole": ("CartPole-v1", "DQN"),
    "rllib_sac_pendulum": ("Pendulum-v1", "SAC"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_policy_acts_as_the_original(name: str, tmp_path: Path) -> None:
    env, algorithm = CASES[name]
    policy = read_rllib(MODELS / name)
    assert (policy.library, policy.run) == ("RLlib 2.60.0", algorithm)
    assert len(policy.notes) == 2 * (name == "rllib_sac_pendulum")
    run, _ = import_policy(policy, env, {}, results_dir=str(tmp_path))
    kept = np.load(MODELS / f"{name}.npz")
    assert len(kept["obs"]) == 1000
    loaded = shoal.Policy.load(run)
    actions = np.array(loaded.compute_actions(kept["obs"], explore=False)).reshape(kept["actions"].shape)
    np.testing.assert_allclose(actions, kept["actions"], atol=1e-5)


def test_values_come_along(tmp_path: Path) -> None:
    ppo = read_rllib(MODELS / "rllib_ppo_cartpole")
    run, _ = import_policy(ppo, "CartPole-v1", {}, results_dir=str(tmp_path))
    weights = shoal.Policy.load(run).get_weights()
    assert ppo.value_output is not None
    np.testing.assert_array_equal(weights["value.hidden1.weight"], ppo.value_hidden[1].weight)
    np.testing.assert_array_equal(weights["value.weight"], ppo.value_output.weight)
    assert read_rllib(MODELS / "rllib_dqn_cartpole").config["dueling"] is True


class Picture(gym.Env[Any, Any]):
    """Has the spaces of make_rllib.py."""

    observation_space = gym.spaces.Box(-1, 1, (20, 24, 2), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


class Painted(Picture):
    action_space = gym.spaces.Box(-1, 3, (2,), np.float32)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_convolutions_are_taken_over(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    name = f"rllib_{algorithm}_picture"
    policy = read_rllib(MODELS / name)
    run, _ = import_policy(policy, Painted if algorithm == "sac" else Picture, {}, results_dir=str(tmp_path))
    kept = np.load(MODELS / f"{name}.npz")
    seen = (kept["obs"].repeat(4, 1).repeat(4, 2) / 127.5 - 1).astype(np.float32)
    assert len(seen) == 1000
    actions = np.array(shoal.Policy.load(run).compute_actions(list(seen), explore=False))
    np.testing.assert_allclose(actions, kept["actions"], atol=1e-5)
    assert len(np.unique(actions)) > 1
    assert (policy.value_output is not None) == (algorithm != "sac")


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


def copied(tmp_path: Path, name: str) -> Path:
    target = tmp_path / name
    shutil.copytree(MODELS / "rllib_ppo_cartpole", target)
    return target


def test_pickles_are_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    first = copied(tmp_path, "first")
    (first / MODULES / "default_policy" / "class_and_ctor_args.pkl").write_bytes(pickle.dumps(Evil(mark)))
    assert read_rllib(first).widths == [16, 16]
    second = copied(tmp_path, "second")
    (second / MODULES / "default_policy" / "module_state.pkl").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(shoal.ConfigError, match="holds no tensors by name"):
        read_rllib(second)
    assert not mark.exists()


def test_what_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(shoal.ConfigError, match="no checkpoint of RLlib"):
        read_rllib(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/experiment.json").write_text("{}")
    with pytest.raises(shoal.ConfigError, match=r"is a run of shoal's already; type: shoal evaluate .*own"):
        read_rllib(tmp_path / "own")
    (tmp_path / "old" / "policies").mkdir(parents=True)
    with pytest.raises(shoal.ConfigError, match="old API stack"):
        read_rllib(tmp_path / "old")
    several = copied(tmp_path, "several")
    shutil.copytree(several / MODULES / "default_policy", several / MODULES / "other")
    with pytest.raises(shoal.ConfigError, match="--policy-id default_policy or --policy-id other"):
        read_rllib(several)
    with pytest.raises(shoal.ConfigError, match="there is no module 'third'"):
        read_rllib(several, "third")
    assert read_rllib(several, "other").widths == [16, 16]
    filtered = copied(tmp_path, "filtered")
    place = filtered / "env_runner/env_to_module_connector"
    (place / "002_OwnFilter").mkdir(parents=True)
    with pytest.raises(shoal.ConfigError, match="pass 002_OwnFilter, and only one MeanStdFilter is imported"):
        read_rllib(filtered)
    (place / "002_OwnFilter").rename(place / "002_MeanStdFilter")
    state = place / "002_MeanStdFilter/state.pkl"
    bomb = base64.b64encode(zlib.compress(bytes(1 << 28))).decode()
    parts = {"mean_array": bomb, "sum_sq_diff_array": bomb, "num_pushes": 3}
    for content, sentence in (
        ([], "has no statistics of default_policy's observations"),
        ({"other": {}}, "has no statistics of default_policy's observations"),
        ({None: {"running_stats": [{}, {}]}}, "several parts"),
        ({None: {"running_stats": [parts]}}, "no statistics that can be read"),
        ({None: {"running_stats": [{**parts, "mean_array": 3}]}}, "no statistics that can be read"),
    ):
        state.write_bytes(pickle.dumps(content))
        with pytest.raises(shoal.ConfigError, match=sentence):
            read_rllib(filtered)
    packed = copied(tmp_path, "packed")
    place = packed / MODULES / "default_policy"
    (place / "module_state.pkl").rename(place / "module_state.msgpack")
    with pytest.raises(shoal.ConfigError, match="without use_msgpack"):
        read_rllib(packed)
    strange = copied(tmp_path, "strange")
    state = {"torso.weight": np.ones((2, 2), np.float32)}
    (strange / MODULES / "default_policy" / "module_state.pkl").write_bytes(pickle.dumps(state))
    with pytest.raises(shoal.ConfigError, match="none of RLlib's default networks"):
        read_rllib(strange)
