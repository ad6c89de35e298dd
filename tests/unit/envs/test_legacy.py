from __future__ import annotations

import logging
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal.envs.context import EnvContext
from shoal.envs.env_errors import notice_once
from shoal.envs.importing import INSTALLED
from shoal.envs.legacy import LegacyGymEnv, gymnasium_space, is_legacy
from shoal.envs.making import adapt_legacy, env_maker, strip
from shoal.errors import ConfigError, EnvError

old_gym = INSTALLED.load_file(str(Path(__file__).with_name("old_gym.py")))


def test_the_seeds_environment_plays_an_episode() -> None:
    env = env_maker(old_gym.my_environment).make(EnvContext({"Scalar": 1 / 6.931}))
    assert isinstance(env, LegacyGymEnv)
    obs, info = env.reset(seed=1)
    assert obs.tolist() == [0, 0, 0, 0, 0]
    assert info == {}
    for step in range(4):
        obs, reward, terminated, truncated, info = env.step(np.int64(step))
        assert (terminated, truncated) == (step == 3, False)
    assert reward == pytest.approx(-((1 / 6.931 - (14 * 13) / (12 * 15)) ** 2))
    # Its own space ends at 3: the last observation of every episode lies outside.
    assert obs[0] == 4
    assert not env.observation_space.contains(obs)


def test_who_is_legacy() -> None:
    assert is_legacy(old_gym.my_environment({"Scalar": 1.0}))
    assert is_legacy(old_gym.Stranger())
    assert not is_legacy(old_gym.NewResetOldStep())
    assert not is_legacy(gymnasium.make("CartPole-v1"))
    assert not is_legacy(LegacyGymEnv(old_gym.Drawing()))


def test_time_limit_in_info_is_truncation() -> None:
    env = LegacyGymEnv(old_gym.Drawing())
    env.reset(seed=0)
    assert env.step(1)[2:4] == (False, True)
    assert env.step(0)[2:4] == (True, False)


def test_seeds_reach_np_random_and_only_when_given() -> None:
    env = LegacyGymEnv(old_gym.Drawing())
    first, second = env.reset(seed=5)[0], env.reset()[0]
    assert env.reset(seed=5)[0] == first
    assert env.reset()[0] == second
    assert first != second


def test_seeds_reach_an_old_seed_method() -> None:
    env = LegacyGymEnv(old_gym.Stranger())
    env.reset(seed=7)
    env.reset()
    assert env.env.seeds == [7]


def test_users_methods_stay_within_reach() -> None:
    env = LegacyGymEnv(old_gym.Drawing())
    env.set_task(3)
    assert env.task == 3
    assert env.has_wrapper_attr("set_task")
    with pytest.raises(AttributeError):
        env.nothing_of_that_name  # noqa: B018


def test_a_stranger_is_rendered_and_closed() -> None:
    env = env_maker(old_gym.Stranger).make(EnvContext({"size": 2}))
    assert env.observation_space == spaces.Box(-1, 1, (2,))
    assert env.render() == "a picture"
    env.close()
    assert env.env.closed


def test_new_reset_with_old_step() -> None:
    env = LegacyGymEnv(old_gym.NewResetOldStep())
    obs, info = env.reset(seed=3)
    assert obs.shape == (2,)
    assert info == {}
    assert len(env.step(0)) == 5


def test_gymnasiums_wrappers_around_an_old_environment() -> None:
    gymnasium.register("OldDrawing-v0", entry_point=old_gym.Drawing, max_episode_steps=9)
    env = env_maker("OldDrawing-v0").make(EnvContext())
    env.reset(seed=0)
    assert len(env.step(0)) == 5
    assert strip(env)[1] == 9


def test_adapting_keeps_the_limit() -> None:
    env = adapt_legacy(gymnasium.wrappers.TimeLimit(old_gym.NewResetOldStep(), 2))
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]


def test_the_notice_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    notice_once.cache_clear()
    with caplog.at_level(logging.WARNING, "shoal"):
        for _ in range(3):
            LegacyGymEnv(old_gym.Drawing()).reset()
    assert [record.name for record in caplog.records] == ["shoal"]
    assert "Drawing has the interface of old Gym" in caplog.text


def test_a_tuple_observation_with_a_dict_in_it() -> None:
    class Pair(gymnasium.Env):
        observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Dict(a=spaces.Discrete(2))])
        action_space = spaces.Discrete(2)

        def reset(self):
            return 1, {"a": 0}

    assert LegacyGymEnv(Pair()).reset() == ((1, {"a": 0}), {})


def test_old_spaces_become_gymnasiums() -> None:
    old = old_gym.Dict(
        {
            "b": old_gym.Box(0, 255, (4, 4, 3), np.uint8),
            "a": old_gym.Tuple([old_gym.Discrete(3), old_gym.MultiDiscrete([2, 3]), old_gym.MultiBinary(4)]),
            "grid": old_gym.MultiBinary([2, 2]),
        }
    )
    new = gymnasium_space(old)
    assert isinstance(new, spaces.Dict)
    assert new["b"] == spaces.Box(0, 255, (4, 4, 3), np.uint8)
    assert new["a"] == spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(4)])
    assert new["grid"] == spaces.MultiBinary([2, 2])


def test_strange_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\.Text is not a space"):
        gymnasium_space(old_gym.Text())
    with pytest.raises(EnvError, match="is None; set both"):
        gymnasium_space(None)
