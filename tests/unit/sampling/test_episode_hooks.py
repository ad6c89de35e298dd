"""Hooks that are given the environment: the same metrics whether it is in the worker's process or in its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import shoal
from shoal.data.batch import Episode


class Pole(gym.Env[Any, Any]):
    """A walk whose angle only hooks can see."""

    observation_space = gym.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, config: Any) -> None:
        self.angle = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.angle = float(self.np_random.uniform(-1, 1))
        return np.array([self.angle, 0], np.float32), {}

    def step(self, action: int) -> Any:
        self.angle += 0.1 * (int(action) - 1) + float(self.np_random.normal(0, 0.1))
        ends = bool(self.np_random.random() < 0.1)
        return np.array([self.angle, 1], np.float32), self.angle, ends, False, {}


class Angles(shoal.DefaultCallbacks):
    """Classic RLlib's example of custom metrics, and where it ran."""

    def on_episode_start(self, *, worker: Any, env: Any, episode: Any, **kwargs: Any) -> None:
        assert episode.length == 0
        episode.user_data["angles"] = []

    def on_episode_step(self, *, worker: Any, env: Any, episode: Any, **kwargs: Any) -> None:
        episode.user_data["angles"].append(abs(env.angle))

    def on_episode_end(self, *, worker: Any, env: Any, episode: Any, **kwargs: Any) -> None:
        angles = episode.user_data["angles"]
        assert len(angles) == episode.length
        episode.custom_metrics["angle"] = float(np.mean(angles))
        episode.custom_metrics["worker"] = worker.worker_index


class LastAngle(shoal.DefaultCallbacks):
    """Needs no step but the last."""

    def on_episode_end(self, *, worker: Any, env: Any, episode: Any, **kwargs: Any) -> None:
        episode.custom_metrics["angle"] = env.angle
        episode.custom_metrics["here"] = os.getpid()


class NeedsPolicy(shoal.DefaultCallbacks):
    """Asks for what is in another process."""

    def on_episode_end(self, *, worker: Any, env: Any, episode: Any, **kwargs: Any) -> None:
        worker.get_policy()


class Raises(shoal.DefaultCallbacks):
    """Has a bug."""

    def on_episode_step(self, *, worker: Any, env: Any, episode: Any, **kwargs: Any) -> None:
        if episode.length == 3:
            raise KeyError("no such column")


def settings(callbacks: Any, isolation: str) -> dict[str, Any]:
    return {
        "callbacks": callbacks,
        "env_isolation": isolation,
        "num_envs_per_worker": 2,
        "train_batch_size": 120,
        "num_sgd_iter": 1,
        "seed": 3,
    }


def by_env(episodes: list[Episode]) -> list[Episode]:
    return sorted(episodes, key=lambda episode: episode.env_index)  # in the order of each environment


def test_metrics_are_the_same_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = {}
    for isolation in ("none", "process"):
        with shoal.PPO(env=Pole, config=settings(Angles, isolation)) as trainer:
            first = trainer.train()
            path = trainer.save(tmp_path / isolation)
        with shoal.PPO(env=Pole, config=settings(Angles, isolation)) as trainer:
            trainer.restore(path)  # what hooks kept of unfinished episodes comes back with them
            sample = trainer.workers.sample(60)
        found[isolation] = first["custom_metrics"], by_env(sample.episodes)
    assert found["process"] == found["none"]
    assert {"angle_mean", "worker_mean"} <= set(found["process"][0])


def test_a_hook_that_needs_the_last_step_alone() -> None:
    episodes = {}
    for isolation in ("none", "process"):
        with shoal.PPO(env=Pole, config=settings(LastAngle, isolation)) as trainer:
            episodes[isolation] = by_env(trainer.workers.sample(60).episodes)
    pids = {isolation: {e.metrics.pop("here") for e in found} for isolation, found in episodes.items()}
    assert episodes["process"] == episodes["none"]
    assert pids["none"] == {os.getpid()}
    assert len(pids["process"]) == 2
    assert os.getpid() not in pids["process"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NeedsPolicy, "NeedsPolicy.on_episode_end failed in environment .*worker.get_policy is not there"),
        (Raises, "Raises.on_episode_step failed in environment . at step 3 of its episode: .*no such column"),
    ],
)
def test_what_cannot_work_there_is_said(kind: type, words: str) -> None:
    with (
        shoal.PPO(env=Pole, config=settings(kind, "process")) as trainer,
        pytest.raises(shoal.CallbackError, match=words),
    ):
        trainer.train()
