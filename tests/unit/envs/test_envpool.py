"""EnvPool's environments: the episodes of the originals, seeds by our streams, and one sentence for every mistake."""

from __future__ import annotations

import json
import logging

import gymnasium as gym
import numpy as np
import pytest
from click.testing import CliRunner
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import shoal
from shoal.cli.main import main
from shoal.config.experiment import algorithm_config
from shoal.envs.context import EnvContext
from shoal.envs.making import env_maker
from shoal.envs.native import NativeVector
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import Steps
from shoal.errors import ConfigError
from shoal.sampling.worker import Worker

pytestmark = pytest.mark.slow  # `make test-slow` installs it
pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'shoal-rl[envpool]'")

SMALL = {"train_batch_size": 256, "sgd_minibatch_size": 32, "num_sgd_iter": 1}


def pool_of(env_id, num_envs=3, **env_config):
    return env_maker(f"envpool:{env_id}").make(EnvContext(env_config, num_envs=num_envs))


def native_of(env_id, num_envs=3, first_index=0, **env_config):
    pool = pool_of(env_id, num_envs, **env_config)
    specs = ObsSpec(pool.single_observation_space), ActionSpec(pool.single_action_space)
    return NativeVector(pool, *specs, seed=3, first_index=first_index), *specs


def played(env_id, count, num_envs=3, actions=None, **env_config):
    """Of each environment, its transitions: what was seen, done, earned, and whether that ended or cut the episode."""
    vector, obs_spec, action_spec = native_of(env_id, num_envs, **env_config)
    rng = np.random.default_rng(0)
    obs = obs_spec.allocate(num_envs)
    vector.reset(obs)
    found = [[] for _ in range(num_envs)]
    for _ in range(count):
        taken = np.array([action_spec.space.sample() if actions is None else actions(rng) for _ in range(num_envs)])
        taken = taken.reshape(num_envs, -1).astype(action_spec.dtype)
        flags = [np.zeros(num_envs, bool) for _ in range(2)]
        steps = Steps(obs_spec.allocate(num_envs), np.zeros(num_envs, np.float32), *flags, np.ones(num_envs, bool))
        vector.step(taken, None, steps)
        decoded = action_spec.decode(taken)
        for row in np.flatnonzero(steps.valid):
            ends = bool(steps.terminated[row]), bool(steps.truncated[row])
            found[row].append((obs[0][row].copy(), decoded[row], float(steps.rewards[row]), *ends))
        obs = tuple(part.copy() for part in steps.obs)
    vector.close()
    return found, vector.episodes


def test_its_cart_pole_has_the_episodes_of_gymnasiums() -> None:
    found, episodes = played("CartPole-v1", 120, actions=lambda rng: rng.integers(2))
    original = gym.make("CartPole-v1").unwrapped
    original.reset(seed=0)
    ended = 0
    for row in found:
        starts = True
        for obs, action, reward, terminated, truncated in row:
            if starts:
                original.reset()
                original.state = obs.astype(float)
            np.testing.assert_allclose(np.array(original.state, np.float32), obs, atol=1e-4)
            _, its_reward, its_end, _, _ = original.step(int(action))
            assert (reward, terminated, truncated) == (its_reward, its_end, False)
            starts = terminated
            ended += terminated
    assert ended >= 6
    assert [episode.reward for episode in episodes] == [episode.length for episode in episodes]


def test_its_pendulum_is_truncated_after_200_steps_with_the_return_of_gymnasiums() -> None:
    found, episodes = played("Pendulum-v1", 202, num_envs=2, actions=lambda rng: rng.uniform(-2, 2, 1))
    original = gym.make("Pendulum-v1").unwrapped
    original.reset(seed=0)
    for row, episode in zip(found, episodes, strict=True):
        x, y, speed = row[0][0].astype(float)
        original.state = np.array([np.arctan2(y, x), speed])
        returns = [original.step(action)[1] for _, action, _, _, _ in row[:200]]
        assert episode.length == 200
        assert [flags[3:] for flags in row[198:200]] == [(False, False), (False, True)]
        assert episode.reward == pytest.approx(sum(returns), rel=2e-3)


def test_a_limit_of_steps_truncates_and_does_not_terminate() -> None:
    found, episodes = played("CartPole-v1", 12, actions=lambda rng: rng.integers(2), max_episode_steps=5)
    assert {episode.length for episode in episodes} == {5}
    assert not any(step[3] for row in found for step in row)


def test_it_says_how_it_resets_and_has_spaces_of_the_whole_batch() -> None:
    pool = pool_of("CartPole-v1", 4)
    assert pool.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert pool.observation_space.shape == (4, 4)
    assert pool.action_space == spaces.MultiDiscrete([2, 2, 2, 2])
    pool.close()


def test_unbounded_spaces_are_unbounded() -> None:
    # EnvPool writes C++'s smallest positive and largest number there, and observations lie outside of that.
    pool = pool_of("LunarLanderContinuous-v3", 1)
    assert np.isneginf(pool.single_observation_space.low).all()
    assert np.isposinf(pool.single_observation_space.high).all()
    assert pool.single_action_space == spaces.Box(-1, 1, (2,), np.float32)
    pool.close()


def test_every_environment_has_its_own_seed_whatever_worker_it_is_on() -> None:
    def first_obs(num_envs, first_index):
        vector, obs_spec, _ = native_of("CartPole-v1", num_envs, first_index)
        obs = obs_spec.allocate(num_envs)
        vector.reset(obs)
        first = obs[0].copy()
        vector.reset(obs)
        assert not np.array_equal(first, obs[0])
        vector.close()
        return first

    alone = first_obs(4, 0)
    assert len({tuple(row) for row in alone.tolist()}) == 4
    np.testing.assert_array_equal(alone, np.concatenate([first_obs(2, 0), first_obs(2, 2)]))


def test_num_envs_per_worker_is_the_number_of_environments() -> None:
    for asked, count in ((5, 5), ("auto", 8)):
        config = algorithm_config("PPO", {"num_envs_per_worker": asked})
        worker = Worker(config, env_maker("envpool:CartPole-v1"))
        assert worker.vector.num_envs == count
        worker.stop()


def test_a_dict_of_observations_reaches_the_policy(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to the working folder
    with shoal.PPO(env="envpool:CartpoleBalance-v1", config={**SMALL, "num_envs_per_worker": 2}) as trainer:
        trainer.train()
        obs = {"position": np.zeros(3), "velocity": np.zeros(2)}
        assert np.shape(trainer.compute_single_action(obs)) == (1,)


def test_it_trains_is_evaluated_and_resumed_with_new_episodes(tmp_path, caplog) -> None:
    config = {**SMALL, "evaluation_interval": 1, "evaluation_duration": 2, "evaluation_num_workers": 0}
    caplog.set_level(logging.INFO, "shoal")
    trainer = shoal.PPO(env="envpool:CartPole-v1", config=config)
    result = trainer.train()
    assert result["episodes_total"] > 0
    assert result["evaluation"]["episode_reward_mean"] > 5
    path = trainer.save(tmp_path)
    trainer.stop()
    again = shoal.PPO(env="envpool:CartPole-v1", config=config)
    again.restore(path)
    assert again.train()["training_iteration"] == 2
    again.stop()
    assert "8 unfinished episodes" in caplog.text
    policy = shoal.Policy.load(path)
    assert policy.compute_single_action(np.zeros(4, np.float32)) in (0, 1)


def test_pong_trains_on_its_pictures(tmp_path) -> None:
    """The environment of the documentation, at the command line."""
    pytest.importorskip("torch")
    words = ["train", "envpool:Pong-v5", "--stop", "timesteps_total=256", "--results-dir", str(tmp_path)]
    words += ["--set", "num_envs_per_worker=4", "--set", "train_batch_size=256", "--set", "num_sgd_iter=1"]
    done = CliRunner().invoke(main, words, prog_name="shoal")
    assert done.exit_code == 0, done.output
    (file,) = tmp_path.glob("*/*/result.json")
    assert json.loads(file.read_text().splitlines()[-1])["timesteps_total"] >= 256


@pytest.mark.parametrize(
    ("env", "env_config", "sentence"),
    [
        ("envpool:CartPole-v2", {}, "did you mean envpool:CartPole-v1"),
        ("envpool:Pomg-v5", {}, "did you mean envpool:Pong-v5"),
        ("envpool:", {}, "`shoal envs envpool:` lists all"),
        ("envpool:CartPole-v1", {"max_episode_step": 5}, "did you mean max_episode_steps?"),
        ("envpool:CartPole-v1", {"num_envs": 5}, "set config.num_envs_per_worker"),
        ("envpool:CartPole-v1", {"seed": 5}, "set config.seed"),
        ("envpool:Hex-v1", {}, "it has 2 players"),
    ],
)
def test_mistakes_are_told_in_one_sentence(env, env_config, sentence) -> None:
    with pytest.raises(ConfigError) as refused:
        env_maker(env).make(EnvContext(env_config, num_envs=2))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pool_of_the_users_own_function_is_the_same() -> None:
    import envpool

    def make(config):
        return envpool.make_gymnasium("CartPole-v1", num_envs=config.num_envs)

    with shoal.PPO(env=make, config={**SMALL, "num_envs_per_worker": 4}) as trainer:
        pools = trainer.workers.foreach_env(lambda env: env.observation_space.shape)
        trainer.train()
    assert pools == [(4, 4)]


def test_the_commands_know_it(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(main, ["envs", "envpool:cartpole-v"])
    assert "envpool:CartPole-v1         Box(4)" in listed.output
    assert "4 environments" in listed.output
    checked = CliRunner().invoke(main, ["check", "envpool:CartPole-v1"])
    assert checked.exit_code == 0, checked.output
    assert "It can be trained." in checked.output
