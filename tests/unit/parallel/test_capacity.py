"""What a configuration takes is known before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shoal.config.experiment import algorithm_config, experiment_from
from shoal.config.settings import AlgorithmConfig
from shoal.errors import ConfigError
from shoal.parallel import capacity
from shoal.parallel.capacity import (
    check_machine,
    check_nodes,
    check_ranks_here,
    check_room,
    least_parameters,
    workers_on,
)
from shoal.runs.run import Run


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores and 8 GB."""
    monkeypatch.setattr(capacity, "cores", lambda: 2)
    monkeypatch.setattr(capacity, "available_memory", lambda: 8 * 10**9)


def config(**keys: Any) -> AlgorithmConfig:
    return algorithm_config("PPO", {"env": "CartPole-v1", **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"num_workers": 32},
        {"num_workers": 100, "num_cpus_per_worker": 0.3},
        {"num_workers": 100, "num_cpus_per_worker": 0},
        {"num_workers": 30, "num_learners": 2},
    ],
)
def test_workers_may_share_cores(keys: dict[str, Any]) -> None:
    check_machine(config(**keys))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"num_workers": 1000},
            r"config.num_workers: 1,000 processes that ask for 1000 CPUs are too many for 2 cores .*; "
            r"use num_workers: 32, or auto; or num_cpus_per_worker: 0.032 if they wait",
        ),
        ({"num_workers": 100_000}, "100,000 processes that ask for 100000 CPUs are too many for 2 cores"),
        ({"num_workers": 1, "num_cpus_per_worker": 1e6}, "use num_workers: 1, or auto; or num_cpus_per_worker: 32 if"),
        ({"num_workers": 32, "num_learners": 2}, "use num_workers: 30, or auto"),
        ({"num_workers": 1, "evaluation_num_workers": 40}, "config.evaluation_num_workers: 41 processes"),
    ],
)
def test_but_not_without_end(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_machine(config(**keys))


def test_what_the_advice_says_is_taken() -> None:
    check_machine(config(num_workers=1000, num_cpus_per_worker=0.032).model_copy(update={"num_workers": 126}))
    check_machine(config(num_workers=126, num_cpus_per_worker=0.001))


def test_parameters_between_hidden_layers() -> None:
    """With one number that comes in and one that goes out, and the biases of the hidden layers."""
    assert least_parameters(config(model={"fcnet_hiddens": [100, 10, 5]})) == 2 * (100 + 1050 + 5 + 115)
    assert least_parameters(config(model={"fcnet_hiddens": [100, 10, 5], "vf_share_layers": True})) == 1270
    assert least_parameters(config(model={"fcnet_hiddens": [7]})) == 2 * 21
    assert least_parameters(config(model={"use_lstm": True, "lstm_cell_size": 10, "fcnet_hiddens": [1]})) == 2 * 403
    assert least_parameters(config(model={"fcnet_hiddens": [], "sequence_hiddens": [5]})) == 2 * 15


def test_a_network_that_memory_cannot_hold_is_refused() -> None:
    wide = {"fcnet_hiddens": [10_000, 20_000]}  # 400 million parameters
    check_room(config(model=wide), is_private=True)
    with pytest.raises(ConfigError, match=r"model.fcnet_hiddens: a network of 400,120,000 parameters takes 9.6 GB"):
        check_room(config(model=wide, num_workers=2), is_private=True)
    check_room(config(model=wide, num_workers=2), is_private=False)


@pytest.mark.parametrize(
    ("keys", "obs_bytes", "sentence"),
    [
        ({"train_batch_size": 2**31 - 1}, 0, r"train_batch_size: 2,147,483,647 steps of at least 24 bytes take 52 GB"),
        ({"num_envs_per_worker": 2**31 - 1}, 0, "num_envs_per_worker: 2,147,483,647 environments of at least 4,096"),
        ({}, 10_000_000, "train_batch_size: 2,048 steps of at least 10,000,024 bytes take 20 GB of memory"),
    ],
)
def test_a_batch_that_memory_cannot_hold_is_refused(keys: dict[str, Any], obs_bytes: int, sentence: str) -> None:
    check_room(config(), is_private=True)
    with pytest.raises(ConfigError, match=sentence):
        check_room(config(**keys), True, obs_bytes)


def test_what_fits_part_by_part_and_not_together_is_refused_with_the_sum() -> None:
    wide = {"fcnet_hiddens": [10_000, 15_000]}  # 4.8 GB
    check_room(config(model=wide), is_private=True)
    check_room(config(train_batch_size=150_000_000), is_private=True)  # 3.6 GB
    with pytest.raises(ConfigError) as caught:
        check_room(config(model=wide, train_batch_size=150_000_000, num_workers=1), is_private=True)
    told = str(caught.value)
    assert told.startswith("config.model.fcnet_hiddens: a network of 300,100,000 parameters takes 6.0 GB"), told
    assert "(network 6.0 GB + batch 3.6 GB + environments 33 kB + processes 63 MB = 9.7 GB)" in told
    check_room(config(model=wide, num_workers=0), is_private=True)
    with pytest.raises(ConfigError, match=r"train_batch_size: .* take 4.8 GB of memory, .*; use 66,6.* or fewer"):
        check_room(config(model={"fcnet_hiddens": [10_000, 15_000]}, train_batch_size=201_000_000), False)


def test_replay_counts_too() -> None:
    keys = {"env": "CartPole-v1", "replay_buffer_config": {"capacity": 2**31 - 1}}
    with pytest.raises(ConfigError, match=r"config.replay_buffer_config.capacity: 2,147,483,647 transitions"):
        check_room(algorithm_config("DQN", keys), is_private=True)


def test_a_million_stacked_frames_are_left_to_replay_which_keeps_each_once() -> None:
    keys = {"env": "CartPole-v1", "replay_buffer_config": {"capacity": 1_000_000}}  # with whole images: 56 GB
    check_room(algorithm_config("DQN", keys), True, 4 * 84 * 84)


def test_processes_count_where_they_are_on_this_machine() -> None:
    many = config(num_workers=1000, num_cpus_per_worker=0.001)
    with pytest.raises(ConfigError, match=r"1,000 processes take at least 63 GB of memory.* use num_workers: 126"):
        check_room(many, is_private=True)
    check_room(many, is_private=False)


def test_a_memory_that_is_too_large_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model.lstm_cell_size: a network of"):
        check_room(config(model={"use_lstm": True, "lstm_cell_size": 2**31 - 1}), is_private=False)


HOSTS = [{"CPU": 12.0}, {"CPU": 12.0}, {"CPU": 8.0}]


@pytest.mark.parametrize(
    "keys",
    [
        {"num_workers": 3, "env_ranks": 8},
        {"num_workers": 8, "env_ranks": 2, "num_envs_per_worker": 2},
        {"num_workers": "auto", "env_ranks": 8},
        {"num_workers": 0, "num_cpus_per_worker": 100},
        {"num_workers": 32},
    ],
)
def test_what_fits_the_hosts_is_let_through(keys: dict[str, Any]) -> None:
    check_nodes(config(**keys), HOSTS)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"num_workers": 1, "env_ranks": 16},
            r"config.env_ranks: a worker needs 16 CPUs \(1 environment of 16 ranks\) of one host, and the largest "
            r"offers 12; use env_ranks: 12 at most",
        ),
        ({"num_workers": 2, "env_ranks": 8, "num_envs_per_worker": 2}, "use num_envs_per_worker: 1 at most, and more"),
        ({"num_workers": 1, "num_cpus_per_worker": 13}, r"config.num_cpus_per_worker: a worker needs 13 CPUs of one"),
        (
            {"num_workers": 4, "env_ranks": 8},
            r"config.num_workers: 4 processes of 8 CPUs .* do not fit on hosts that offer 12, 12, 8; use num_w.*: 3",
        ),
    ],
)
def test_a_worker_and_its_ranks_are_on_one_host(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_nodes(config(**keys), HOSTS)


def test_auto_is_what_the_hosts_have_room_for() -> None:
    assert workers_on(config(num_workers="auto", env_ranks=8), HOSTS) == 3
    assert workers_on(config(num_workers="auto", env_ranks=4), HOSTS) == 8
    assert workers_on(config(num_workers="auto"), HOSTS) == 32
    assert workers_on(config(num_workers="auto", env_ranks=4, max_concurrent_envs=5), HOSTS) == 5


def test_ranks_on_this_machine_share_cores_but_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "shoal.progress")
    check_ranks_here(config(env_ranks=2))
    assert not caplog.messages
    check_ranks_here(config(env_ranks=2, num_envs_per_worker=16))
    assert caplog.messages == ["32 ranks share the 2 cores of this machine, and are not bound to them"]
    with pytest.raises(ConfigError, match=r"config.env_ranks: 17 environments of 2 ranks need 34 slots, and this mach"):
        check_ranks_here(config(env_ranks=2, num_envs_per_worker=17))
    with pytest.raises(ConfigError, match=r"use num_workers: 4, or auto$"):
        check_machine(config(num_workers=5, env_ranks=8))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"train_batch_size": 2**31 - 1}, "train_batch_size: .* take 52 GB of memory, and 8.0 GB are free"),
        ({"num_envs_per_worker": 2**31 - 1, "train_batch_size": 2**31 - 1}, "num_envs_per_worker|train_batch_size"),
        ({"model": {"fcnet_hiddens": [2**31 - 1, 2**31 - 1]}}, "model.fcnet_hiddens: a network of .* parameters takes"),
        ({"model": {"use_lstm": True, "lstm_cell_size": 2**31 - 1}}, "model.lstm_cell_size: a network of"),
        ({"num_workers": 100_000}, "num_workers: 100,000 "),
        ({"model": {"use_attention": True, "attention_dim": 2**31 - 1}}, "model.attention_dim: a network of"),
        ({"model": {"use_attention": True, "attention_head_dim": 2**31 - 1}}, "model.attention_head_dim: a network"),
        ({"model": {"use_attention": True, "attention_num_heads": 2**31 - 1}}, "attention_num_heads: a network of"),
        (
            {"model": {"use_attention": True, "attention_num_transformer_units": 2**31 - 1}},
            "model.attention_num_transformer_units: a network of",
        ),
        (
            {"model": {"use_attention": True, "attention_memory_inference": 2**31 - 1}},
            "model.attention_memory_inference: a network of",
        ),
        ({"num_workers": 1, "num_cpus_per_worker": 1e6}, "num_workers: 1 processes that ask for 1e[+]06 CPUs"),
        ({"num_workers": 1_000_000, "num_cpus_per_worker": 0}, "num_workers: 1,000,000 processes take at least 62,9"),
        ({"evaluation_num_workers": 100_000, "evaluation_interval": 1}, "evaluation_num_workers: 100,000 processes"),
        ({"model": {"fcnet_hiddens": [2**31 - 1]}}, "model.fcnet_hiddens: a network of 12,884,901,882 parameters"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_fit_never_makes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr("shoal.runs.run.make_run_folder", lambda *_: pytest.fail("a folder is made"))
    tree = {"env": "CartPole-v1", "results_dir": str(tmp_path / "r"), "stop": {"training_iteration": 1}, "config": keys}
    with pytest.raises(ConfigError, match=sentence):
        Run.open(experiment_from(tree))
    assert not list(tmp_path.iterdir())


class Wide(gymnasium.Env[Any, Any]):
    """Shows 10 MB at each step."""

    observation_space = gymnasium.spaces.Box(0, 1, (2_500_000,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2_500_000, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2_500_000, np.float32), 0.0, False, False, {}


def test_observations_that_fill_memory_leave_no_folder(tmp_path: Path) -> None:
    keys = {"num_envs_per_worker": 1, "model": {"fcnet_hiddens": [1]}}
    tree = {"env": Wide, "name": "wide", "results_dir": str(tmp_path), "config": keys}
    with pytest.raises(ConfigError, match=r"train_batch_size: 2,048 steps of at least 10,000,024 bytes take 20 GB"):
        list(Run.open(experiment_from(tree)).results())
    assert not list(tmp_path.iterdir())
