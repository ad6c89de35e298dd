"""Our environments as a plain VectorEnv of Gymnasium, held against Gymnasium's own."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import shoal
from shoal.bridges.env_group import SEED_SHIFT
from shoal.data.streams import reset_seed

SEED = 3


class Everything(gym.Env[Any, Any]):
    """Observations and actions of many kinds; what it sees of an action comes back as its next observation."""

    observation_space = gym.spaces.Dict(
        {
            "numbers": gym.spaces.Box(-9, 9, (2, 2), np.float32),
            "level": gym.spaces.Discrete(5, start=-2),
            "image": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "pair": gym.spaces.Tuple((gym.spaces.MultiBinary(3), gym.spaces.MultiDiscrete([3, 4]))),
        }
    )
    action_space = gym.spaces.Dict(
        {"force": gym.spaces.Box(-2, 2, (2,), np.float32), "gear": gym.spaces.Discrete(3, start=1)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return self._seen(np.zeros(2), 1), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.taken += 1
        return self._seen(action["force"], action["gear"]), 0.5, self.taken == 7, False, {"mark": self.taken}

    def _seen(self, force: Any, gear: int) -> Any:
        draw = self.np_random
        return {
            "numbers": np.float32(np.outer(force, [1, gear])),
            "level": gear - 2,
            "image": draw.integers(0, 255, (8, 8, 3), np.uint8),
            "pair": (draw.integers(0, 2, 3, np.int8), draw.integers(0, [3, 4])),
        }


class Sick(gym.Env[Any, Any]):
    """The second environment raises at its third step."""

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.is_sick = config.env_index == config.get("sick", 1)
        self.hangs = config.get("hangs", False)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.taken += 1
        if self.is_sick and self.taken == 3:
            while self.hangs:
                pass
            raise RuntimeError("no convergence")
        return np.full(1, self.taken, np.float32), 1.0, False, False, {}


def same(one: Any, other: Any) -> None:
    """Both have the same structure, types and numbers."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right)
    elif isinstance(one, np.ndarray) and one.dtype == object:
        for left, right in zip(one, other, strict=True):
            same(left, right)
    else:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def gymnasiums_own(make: Any, count: int) -> tuple[SyncVectorEnv, list[int]]:
    """The same environments in Gymnasium's vector, and the seeds that ours give them."""
    seeds = [reset_seed(0, row, (SEED << SEED_SHIFT) + 1) for row in range(count)]
    return SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP), seeds


@pytest.mark.parametrize(("name", "isolation"), [("CartPole-v1", "none"), ("Everything", "process")])
def test_gives_what_gymnasiums_vector_gives(name: str, isolation: Any) -> None:
    if name == "Everything":
        ours = shoal.make_vec(Everything, num_envs=3, env_isolation=isolation)
        theirs, seeds = gymnasiums_own(Everything, 3)
    else:
        limit = {"max_episode_steps": 13}  # so that some episodes are truncated and others terminated
        ours = shoal.make_vec(name, num_envs=3, env_config=limit, env_isolation=isolation)
        theirs, seeds = gymnasiums_own(lambda: gym.make(name, **limit), 3)
    with closing(ours), closing(theirs):
        assert isinstance(ours, VectorEnv)
        for what in ("num_envs", "observation_space", "action_space", "single_observation_space"):
            assert getattr(ours, what) == getattr(theirs, what)
        assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        same(ours.reset(seed=SEED)[0], theirs.reset(seed=seeds)[0])
        theirs.action_space.seed(1)
        ended = {"terminated": 0, "truncated": 0}
        for _ in range(60):
            actions = theirs.action_space.sample()
            mine, other = ours.step(actions), theirs.step(actions)
            for left, right in zip(mine[:4], other[:4], strict=True):
                same(left, right)
            done = other[2] | other[3]
            assert ("final_obs" in mine[4]) == done.any()
            if done.any():
                same(mine[4]["final_obs"], other[4]["final_obs"])
                for key in ("_final_obs", "_final_info"):
                    np.testing.assert_array_equal(mine[4][key], done)
                assert set(mine[4]["final_info"]) >= {"episode", "_episode", *other[4]["final_info"]}
            ended["terminated"] += int(other[2].sum())
            ended["truncated"] += int(other[3].sum())
        assert ended["terminated"]
        assert ended["truncated"] or name == "Everything"


def test_a_seed_leads_to_the_same_episodes_at_any_time() -> None:
    with closing(shoal.make_vec("CartPole-v1", num_envs=2)) as env:
        first, _ = env.reset(seed=11)
        env.step([0, 1])
        other, _ = env.reset(seed=12)
        unseeded, _ = env.reset()
        again, _ = env.reset(seed=11)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(other, unseeded)
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_each_environment_may_have_a_seed_of_its_own(isolation: Any) -> None:
    with closing(shoal.make_vec("CartPole-v1", num_envs=3, env_isolation=isolation)) as env:
        first, _ = env.reset(seed=[1, 2, 3])
        for seeds in ((1, 2, 3), np.array([1, 2, 3]), [np.int64(1), 2, 3]):
            np.testing.assert_array_equal(env.reset(seed=seeds)[0], first)
        other, _ = env.reset(seed=[1, 7, 3])
        np.testing.assert_array_equal(other[[0, 2]], first[[0, 2]])
        assert not np.array_equal(other[1], first[1])
        np.testing.assert_array_equal(env.reset(seed=[5, 5, 5])[0], env.reset(seed=5)[0])
        some, _ = env.reset(seed=[1, None, 3])
        np.testing.assert_array_equal(some[[0, 2]], first[[0, 2]])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seed": [1, 2]}, r"seed: 3 environments need as many seeds, or one number \(got 2\)"),
        ({"seed": -1}, r"seed: must be a whole number of at least 0, or a list of them \(got -1\)"),
        ({"seed": [1, -1, 2]}, r"seed: must be a whole number .* \(got \[1, -1, 2\]\)"),
        ({"seed": "a"}, "seed: must be a whole number .* \\(got 'a'\\)"),
        ({"seed": 1.7}, r"seed: must be a whole number .* \(got 1\.7\)"),
        ({"seed": True}, r"seed: must be a whole number .* \(got True\)"),
        ({"options": 3}, r"options: must be a dict \(got 3\)"),
    ],
)
def test_what_is_no_seed_and_no_options_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with closing(shoal.make_vec("CartPole-v1", num_envs=3)) as env:
        with pytest.raises(shoal.ConfigError, match=f"^{sentence}$"):
            env.reset(**arguments)
        env.reset(seed=1)


@pytest.mark.parametrize(
    ("env", "actions", "sentence"),
    [
        ("Pendulum-v1", np.zeros(2), r"actions must be numbers of shape \(2, 1\) \(got shape \(2,\)\)"),
        ("CartPole-v1", [0, 1, 0], r"actions must be numbers of shape \(2,\) \(got shape \(3,\)\)"),
        ("CartPole-v1", [[0], [1]], r"actions must be numbers of shape \(2,\) \(got shape \(2, 1\)\)"),
        ("CartPole-v1", None, r"actions must be numbers of shape \(2,\) \(got None\)"),
        ("CartPole-v1", [[0], [0, 1]], r"actions must be numbers of shape \(2,\) \(got \[\[0\], \[0, 1\]\]\)"),
        (Everything, {"force": np.zeros((2, 2))}, r"actions at 'gear' must be numbers of shape \(2,\) \(got \{.*\}\)"),
        (Everything, None, r"actions at 'force' must be numbers of shape \(2, 2\) \(got None\)"),
        (Everything, {"force": np.zeros((2, 3)), "gear": [1, 1]}, r".* shape \(2, 2\) \(got shape \(2, 3\)\)"),
    ],
)
def test_actions_of_another_shape_are_refused_and_not_made_to_fit(env: Any, actions: Any, sentence: str) -> None:
    with closing(shoal.make_vec(env, num_envs=2)) as vector:
        vector.reset(seed=1)
        with pytest.raises(shoal.EnvError, match=f"^step: {sentence}$"):
            vector.step(actions)
        vector.step(vector.action_space.sample())


def test_gymnasiums_wrappers_go_around_it() -> None:
    with closing(RecordEpisodeStatistics(shoal.make_vec("CartPole-v1", num_envs=2))) as env:
        env.reset(seed=1)
        for _ in range(100):
            *_, infos = env.step(env.action_space.sample())
            if "episode" in infos:
                ended = infos["_episode"]
                own = infos["final_info"]["episode"]
                np.testing.assert_array_equal(own["r"][ended], infos["episode"]["r"][ended])
                np.testing.assert_array_equal(own["l"][ended], infos["episode"]["l"][ended])
                return
    raise AssertionError("no episode ended")


@pytest.mark.parametrize("hangs", [False, True])
def test_a_failing_environment_is_restarted_alone_and_told(hangs: bool, caplog: Any) -> None:
    limits: dict[str, Any] = {"env_step_timeout_s": 0.5} if hangs else {}
    with (
        caplog.at_level(logging.WARNING, "shoal"),
        closing(shoal.make_vec(Sick, num_envs=2, env_config={"hangs": hangs}, **limits)) as env,
    ):
        env.reset(seed=1)
        for _ in range(2):
            obs, *_, infos = env.step([0, 0])
            assert not infos
        np.testing.assert_array_equal(obs, [[2], [2]])
        obs, rewards, terminated, truncated, infos = env.step([0, 0])
        np.testing.assert_array_equal(obs, [[3], [0]])
        np.testing.assert_array_equal(rewards, [1, 0])
        assert not terminated.any()
        np.testing.assert_array_equal(truncated, [False, True])
        assert infos["final_obs"][1] == [2]  # the last sound one
        assert infos["final_info"]["failed"].tolist() == [False, True]
        assert {name: infos["final_info"]["episode"][name].tolist() for name in "rl"} == {"r": [0, 2], "l": [0, 2]}
        told = "env_step_timeout_s" if hangs else "no convergence"
        assert told in infos["incident"][1]
        assert told in caplog.text
        assert (env.num_incidents, [incident.env_index for incident in env.incidents]) == (1, [1])
        obs, *_, infos = env.step([0, 0])
        np.testing.assert_array_equal(obs, [[4], [1]])
        assert not infos


def test_an_environment_that_always_fails_ends_it_with_its_cause() -> None:
    with closing(shoal.make_vec(Sick, num_envs=2, max_env_failures=0)) as env:
        env.reset()
        for _ in range(2):
            env.step([0, 0])
        with pytest.raises(shoal.EnvError, match="no convergence"):
            env.step([0, 0])


@pytest.mark.parametrize("isolation", ["process"])
def test_attributes_and_methods_of_environments(isolation: Any) -> None:
    with closing(shoal.make_vec("CartPole-v1", num_envs=3, env_isolation=isolation)) as env:
        env.set_attr("gravity", [1.0, 2.0, 3.0])
        assert env.get_attr("gravity") == (1.0, 2.0, 3.0)
        env.set_attr("length", 0.7)
        assert env.call("length") == (0.7, 0.7, 0.7)
        assert [type(obs) for obs, _ in env.call("reset", seed=2)] == [np.ndarray] * 3
        with pytest.raises(shoal.ConfigError, match="3 environments need as many values"):
            env.set_attr("gravity", [1.0])


class Telling(gym.Env[Any, Any]):
    """Tells much, and not always the same."""

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(1, np.float32), {"start": float(self.np_random.integers(9)), "place": {"x": 1.5}}

    def step(self, action: int) -> Any:
        self.taken += 1
        told = {"count": self.taken, "name": "abc"[:action], "grid": np.full((2, 2), action), "place": {"x": 2.0}}
        if self.taken == 2:
            told["seldom"] = True
        return np.full(1, self.taken, np.float32), 1.0, self.taken == 3 + action, False, told


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_all_infos_come_along_where_they_are_asked_for(isolation: Any) -> None:
    ours = shoal.make_vec(Telling, num_envs=3, infos=True, env_isolation=isolation)
    theirs, seeds = gymnasiums_own(Telling, 3)
    with closing(ours), closing(theirs):
        same(ours.reset(seed=SEED)[1], theirs.reset(seed=seeds)[1])
        for step in range(12):
            actions = np.array([0, 1, step % 2])
            mine, other = ours.step(actions)[4], theirs.step(actions)[4]
            if "final_info" in mine:
                mine["final_info"].pop("episode")
                mine["final_info"].pop("_episode")
            same(mine, other)


class Secret(Telling):
    def step(self, action: int) -> Any:
        return *super().step(action)[:4], {"handle": lambda: 3}


def test_infos_that_no_process_can_send_are_one_sentence() -> None:
    with closing(shoal.make_vec(Secret, num_envs=2, infos=True, env_isolation="process")) as env:
        env.reset()
        with pytest.raises(shoal.ShoalError, match=r"the result cannot be sent: .*(pickle|local object)"):
            env.step([0, 0])


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_function_that_raises_leaves_the_environments_as_they_were(isolation: Any) -> None:
    with closing(shoal.make_vec("CartPole-v1", num_envs=3, env_isolation=isolation)) as env:
        env.reset(seed=1)
        for _ in range(2):
            with pytest.raises(Exception, match="no attribute 'nothing'"):
                env.call("nothing")
            with pytest.raises(Exception, match="division by zero"):
                env.call_each({0: lambda each: 1 / 0, 2: lambda each: 5})
            _, rewards, *_, infos = env.step([0, 0, 0])
            assert rewards.tolist() == [1, 1, 1]
            assert not infos
            assert env.get_attr("length") == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_options_reach_every_environment_with_that_reset_alone(isolation: Any) -> None:
    ends = {"max_episode_steps": 1}
    with closing(shoal.make_vec("CartPole-v1", num_envs=2, env_config=ends, env_isolation=isolation)) as env:
        obs, _ = env.reset(seed=1, options={"low": 0.2, "high": 0.21})
        assert ((obs >= 0.2) & (obs <= 0.21)).all()
        theirs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
        seeds = [reset_seed(0, row, (1 << SEED_SHIFT) + 1) for row in range(2)]
        same(obs, theirs.reset(seed=seeds, options={"low": 0.2, "high": 0.21})[0])
        obs, *_ = env.step([0, 0])  # truncated, and reset without
        assert (np.abs(obs) <= 0.05).all()
        obs, _ = env.reset()
        assert (np.abs(obs) <= 0.05).all()


class Bare(Sick):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


def test_options_that_no_reset_takes_are_refused() -> None:
    with closing(shoal.make_vec(Bare, num_envs=2)) as env, pytest.raises(shoal.ConfigError, match="options=None"):
        env.reset(options={"low": 1})


class Batch(SyncVectorEnv):
    def __init__(self, config: Any) -> None:
        super().__init__([lambda: gym.make("CartPole-v1")] * 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_envs": 0}, "num_envs: must be a whole number of at least 1"),
        ({"num_envs": 3, "num_workers": 2}, "cannot be shared alike by 2 workers; use 4"),
        ({"env_step_timeout": 3}, "did you mean env_step_timeout_s"),
        ({"lr": 3}, "lr: is no key of environments; make_vec takes env_config"),
        ({"env": "CartPole-v7"}, "CartPole"),
        ({"env": Batch}, "is a batch of environments already"),
        ({"env": "pettingzoo:tictactoe_v3"}, "several agents|PettingZoo"),
    ],
)
def test_mistakes_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(shoal.ShoalError, match=sentence):
        shoal.make_vec(**{"env": "CartPole-v1", **arguments})


def test_misuse_is_refused() -> None:
    env = shoal.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(shoal.EnvError, match="call reset first"):
        env.step([0, 0])
    env.reset()
    for wrong in ([0, 2], [0], [0.5, 0], ["a", "b"], [float("nan"), 0]):
        with pytest.raises(shoal.EnvError, match="step: "):
            env.step(wrong)
    with pytest.raises(shoal.EnvError, match="no step was begun"):
        env.step_wait()
    env.step_async([0, 1])
    with pytest.raises(shoal.EnvError, match="call step_wait first"):
        env.step_async([0, 1])
    with pytest.raises(shoal.ConfigError, match="options: reset_mask: episodes that end are reset in the same step"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset()  # also while a step is under way
    env.close()
    env.close()
    with pytest.raises(shoal.EnvError, match="closed"):
        env.reset()
