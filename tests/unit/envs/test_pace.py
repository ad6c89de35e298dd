"""`env_resets_per_s`: turns that processes share, and environments that wait for theirs with the same result."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from time import monotonic
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shoal.config.ppo import PPOConfig
from shoal.envs.making import env_maker
from shoal.envs.pace import Pace
from shoal.errors import ConfigError
from shoal.sampling.worker import Worker


def turns(folder: str, count: int, results: Any) -> None:
    pace = Pace(0.01, folder)
    for _ in range(count):
        results.put(pace._take_turn(pace.interval_s))


def test_processes_take_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=turns, args=(str(tmp_path), 20, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in range(60))
    for process in processes:
        process.join()
    assert np.diff(found).min() > 0.0099


def test_the_share_of_a_worker(tmp_path: Path) -> None:
    config = PPOConfig(num_workers=4, env_resets_per_s=2, evaluation_interval=1)
    began = monotonic()
    pace = Pace.from_config(config, 3, str(tmp_path))
    assert pace is not None
    assert pace.interval_s == 5 / 2, "four workers and evaluation share two per second"
    assert pace._take_turn(0) >= began + 2 / 2, "after the two workers before it"
    assert Pace.from_config(PPOConfig(), 1, str(tmp_path)) is None


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_environments_wait_for_their_turn_and_give_the_same(
    isolation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def sampled(**given: Any) -> Any:
        config = PPOConfig(env="CartPole-v1", num_envs_per_worker=2, horizon=10, env_isolation=isolation, **given)
        worker = Worker(config, env_maker("CartPole-v1"))
        began = monotonic()
        try:
            batch = worker.sample(20).batch
            return [part.copy() for part in batch.obs], monotonic() - began
        finally:
            worker.stop()

    (free, _), (paced, took) = sampled(), sampled(env_resets_per_s=20)
    assert took > 4 * 0.05, "two environments of two episodes begin at least four times after the first look"
    for one, other in zip(free, paced, strict=True):
        assert np.array_equal(one, other)


def test_a_native_vector_environment_is_refused() -> None:
    def make(config: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")

    with pytest.raises(ConfigError, match=r"config.env_resets_per_s: a native vector environment"):
        Worker(PPOConfig(env_resets_per_s=5), env_maker(make))
