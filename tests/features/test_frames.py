"""How far it is from `trainer.train()` to `env.step`: what a person reads, or steps through with a debugger."""

from __future__ import annotations

import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal

MOST_FRAMES = 5  # between the two
SHORT = {
    "env": f"{Path(__file__)}:Spy",
    "num_envs_per_worker": 2,
    "num_cpus_per_worker": 0.5,
    "train_batch_size": 8,
    "sgd_minibatch_size": 8,
    "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [4]},
}
DQN_SHORT = {key: value for key, value in SHORT.items() if not key.startswith(("sgd", "num_sgd"))}
DQN_SHORT |= {"timesteps_per_iteration": 8, "learning_starts": 4}


class Spy(gym.Env):
    """Writes down through which functions its last step was called."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)
    length = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.length += 1
        self.callers = [f"{Path(frame.filename).stem}.{frame.name}" for frame in traceback.extract_stack()[:-1]]
        return np.zeros(1, np.float32), 0.0, self.length == 3, False, {}


class SpyOnEpisodes(shoal.DefaultCallbacks):
    """Keeps the callers of an episode's last step, also where its environment is closed soon after."""

    seen: list[str] = []

    def on_episode_end(self, *, worker, env, episode, **kwargs):
        type(self).seen[:] = env.unwrapped.callers


def between(callers: list[str], first: str) -> list[str]:
    """The callers below the last one of this name."""
    return callers[len(callers) - callers[::-1].index(first) :]


def ways(trainer: shoal.Trainer) -> list[list[str]]:
    trainer.train()
    return trainer.workers.foreach_env(lambda env: env.callers)


@pytest.mark.parametrize("algorithm", ["PPO", "TRPO", "DQN"])
def test_few_frames_lie_between_train_and_step(algorithm):
    with getattr(shoal, algorithm)(config=DQN_SHORT if algorithm == "DQN" else SHORT) as trainer:
        for callers in ways(trainer):
            way = between(callers, "trainer.train")
            learner = f"{'off_policy' if algorithm == 'DQN' else algorithm.lower()}.training_step"
            assert way == ["trainer.train_iteration", learner, "worker.sample", "sampler.sample", "vector.step"]
            assert len(way) <= MOST_FRAMES


@pytest.mark.slow
def test_a_ray_worker_takes_the_same_way(ray_session):
    with shoal.PPO(config={**SHORT, "num_workers": 2, "train_batch_size": 16}) as trainer:
        found = ways(trainer)
        assert len(found) == 4
        for callers in found:
            way = between(callers, "sampler_process.sample")
            assert way == ["worker.sample", "sampler.sample", "vector.step"]


def test_evaluation_samples_through_the_same_door_and_all_its_functions_have_names():
    with shoal.PPO(config={**SHORT, "callbacks": SpyOnEpisodes}) as trainer:
        trainer.evaluate(episodes=3)
    way = between(SpyOnEpisodes.seen, "trainer.evaluate")
    assert way[-3:] == ["worker.sample", "sampler.sample", "vector.step"]
    assert not [name for name in way if "<" in name]
