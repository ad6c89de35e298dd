"""Stable-Baselines3's VecEnv, here in a class of the test's own: the same transitions as those of our own vector."""

from __future__ import annotations

import numpy as np
import pytest
from clock_env import Clock, N, Nested, specs, transitions
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import shoal
from shoal.envs.batches import BaselinesVector
from shoal.envs.context import EnvContext
from shoal.envs.making import env_maker
from shoal.envs.native import NativeVector
from shoal.envs.vector import PythonVector
from shoal.errors import ConfigError


class VecEnv:
    """The interface of Stable-Baselines3's VecEnv around environments of Gymnasium."""

    def __init__(self, makers) -> None:
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.seeds = [None] * self.num_envs
        self.seeded_with = []
        self.is_closed = False

    def seed(self, seed=None):
        self.seeded_with.append(seed)
        self.seeds = [seed + k for k in range(self.num_envs)]
        return self.seeds

    def reset(self):
        first = [env.reset(seed=seed)[0] for env, seed in zip(self.envs, self.seeds, strict=True)]
        self.seeds = [None] * self.num_envs
        return self._stacked(first)

    def step_async(self, actions) -> None:
        self.actions = actions

    def step_wait(self):
        seen, rewards, done, infos = [], [], [], []
        for env, action in zip(self.envs, self.actions, strict=True):
            obs, reward, terminated, truncated, info = env.step(action)
            info = {**info, "TimeLimit.truncated": truncated and not terminated}
            if terminated or truncated:
                info["terminal_observation"] = obs
                obs = env.reset()[0]
            seen.append(obs)
            rewards.append(reward)
            done.append(terminated or truncated)
            infos.append(info)
        return self._stacked(seen), np.array(rewards, np.float32), np.array(done), infos

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def close(self) -> None:
        self.is_closed = True

    def _stacked(self, seen):
        if isinstance(self.observation_space, spaces.Dict):
            return {key: np.stack([obs[key] for obs in seen]) for key in self.observation_space}
        return np.stack(seen)


class VecNormalize(VecEnv):
    """A batch around another that learns how to scale."""

    obs_rms = ret_rms = "means and variances"

    def __init__(self, venv, training=True) -> None:
        self.venv, self.training = venv, training
        self.num_envs, self.observation_space, self.action_space = (
            venv.num_envs,
            venv.observation_space,
            venv.action_space,
        )

    def seed(self, seed=None):
        return self.venv.seed(seed)

    def reset(self):
        return self.venv.reset()

    def step(self, actions):
        return self.venv.step(actions)

    def close(self) -> None:
        self.venv.close()


def clocks(kind=Clock):
    return VecEnv([lambda k=k: kind(k) for k in range(N)])


@pytest.mark.parametrize("kind", [Clock, Nested])
def test_it_gives_the_transitions_of_our_own_vector(kind) -> None:
    obs_spec, action_spec = specs(kind(0))
    mine = NativeVector(BaselinesVector(clocks(kind), "clocks"), obs_spec, action_spec, seed=1)
    theirs = PythonVector(lambda row: (kind(row), None), N, obs_spec, action_spec, seed=1)
    assert transitions(mine, obs_spec) == transitions(theirs, obs_spec)
    for row in range(N):
        ended, wanted = ([e for e in vector.episodes if e.env_index == row] for vector in (mine, theirs))
        assert [(e.reward, e.length, e.metrics) for e in ended] == [(e.reward, e.length, e.metrics) for e in wanted]


def test_a_time_limit_is_a_truncation_with_the_last_observation() -> None:
    vector = BaselinesVector(VecEnv([lambda: TimeLimit(Clock(5), 3)] * 2), "limited")
    vector.reset(seed=3)
    for _ in range(3):
        obs, _, terminated, truncated, infos = vector.step(np.zeros(2, np.int64))
    assert not terminated.any()
    assert truncated.all()
    assert [final.tolist() for final in infos["final_obs"]] == [[5, 3]] * 2
    assert obs.tolist() == [[5, 0]] * 2


def test_workers_seed_it_apart_and_every_reset_has_its_own_seed() -> None:
    given = []
    for first_index in (0, N):
        env = clocks()
        obs_spec, action_spec = specs(Clock(0))
        vector = NativeVector(BaselinesVector(env, "clocks"), obs_spec, action_spec, seed=1, first_index=first_index)
        for _ in range(2):
            vector.reset(obs_spec.allocate(N))
        given += env.seeded_with
    assert len({*given}) == 4


def test_it_trains_and_is_closed() -> None:
    made = []

    def make():
        made.append(VecEnv([lambda: TimeLimit(Clock(1), 9)] * 4))
        return made[-1]

    with shoal.PPO(env=make, config={"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}) as trainer:
        result = trainer.train()
        assert trainer.config.num_envs_per_worker == 4
    assert result["episode_len_mean"] == 3
    assert result["custom_metrics"]["last_mean"] == 3
    assert all(env.is_closed for env in made)


def test_a_batch_that_learns_to_scale_is_refused_with_our_own_words() -> None:
    inner = clocks()
    with pytest.raises(ConfigError, match="observation_filter: MeanStdFilter") as refused:
        env_maker(lambda: VecNormalize(VecNormalize(inner, training=False))).make(EnvContext())
    assert "normalize_rewards" in str(refused.value)
    assert inner.is_closed
    fixed = env_maker(lambda: VecNormalize(clocks(), training=False)).make(EnvContext())
    assert fixed.num_envs == N


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DummyVecEnv", "SubprocVecEnv"])
def test_a_vec_env_of_stable_baselines3_itself_trains(kind: str) -> None:
    """The real one, with its Monitor, around CartPole: its episodes are those of CartPole."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.env_util import make_vec_env

    def pool(config):
        del config
        return make_vec_env("CartPole-v1", n_envs=4, vec_env_cls=getattr(vec_env, kind))

    config = {"train_batch_size": 2000, "seed": 1, "sgd_minibatch_size": 64}
    with shoal.PPO(env=pool, config=config) as trainer:
        first = trainer.train()
        for _ in range(7):
            result = trainer.train()
    assert first["episodes_total"] > 20
    assert 10 < first["episode_reward_mean"] < 40
    assert result["episode_reward_mean"] > 2 * first["episode_reward_mean"]
