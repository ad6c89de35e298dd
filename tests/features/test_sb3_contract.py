"""`shoal.sb3.RayVecEnv` keeps what Stable-Baselines3 promises of a VecEnv: it is held against SB3's own DummyVecEnv.

Observations and actions of every kind that SB3 knows, seeds, options, attributes, methods, wrappers: here, in
processes, and in workers.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
from stable_baselines3 import A2C, SAC
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    is_vecenv_wrapped,
)

from shoal.data.streams import reset_seed
from shoal.sb3 import RayVecEnv


@pytest.fixture(autouse=True)
def ray_for_workers(request: pytest.FixtureRequest) -> None:
    if "workers" in request.node.name:
        request.getfixturevalue("ray_session")


IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9, 9, (3,), np.float32),
    "image": IMAGE,
    "choice": spaces.Discrete(5),
    "dict": spaces.Dict(picture=IMAGE, speed=spaces.Box(-9, 9, (2, 2), np.float32), gear=spaces.Discrete(3)),
    "tuple": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiDiscrete([3, 4]))),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-2, 3, (2,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(3),
}
PLACES: dict[str, dict[str, Any]] = {
    "here": {},
    "processes": {"env_isolation": "process"},
    "workers": {"num_workers": 2, "num_cpus_per_worker": 0.5},
}
EACH_PLACE = ["here", "processes", pytest.param("workers", marks=pytest.mark.slow)]


class Anything(gym.Env[Any, Any]):
    """Observations and actions of any kind, drawn from the seed; ends after five steps, or is truncated after eight."""

    def __init__(self, config: Any) -> None:
        self.observation_space = OBSERVATIONS[config["obs"]]
        self.action_space = ACTIONS[config["action"]]
        self.ends_after, self.scale, self.seen_options = config.get("ends_after", 5), 1.0, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.seen_options = 0, dict(options or {})
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.steps += 1
        reward = self.scale * float(np.sum(action)) + 0.125
        return self._obs(), reward, self.steps == self.ends_after, self.steps == 8, {"taken": self.steps}

    def scaled(self, number: float, plus: float = 0.0) -> float:
        return self.scale * number + plus

    def _obs(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()


def pair(obs: str, action: str, place: str = "here", ends_after: int = 5) -> tuple[RayVecEnv, DummyVecEnv]:
    """Two environments each, of ours and of SB3's, with the same seeds."""
    config = {"obs": obs, "action": action, "ends_after": ends_after}
    ours = RayVecEnv(Anything, num_envs=2, env_config=config, **PLACES[place])
    theirs = DummyVecEnv([lambda: Anything(config)] * 2)
    ours.seed(7)
    theirs._seeds = [reset_seed(0, row, (7 << 32) + 1) for row in range(2)]
    return ours, theirs


def same(one: Any, other: Any) -> None:
    """The same values of the same types, however they are nested."""
    if isinstance(other, dict):
        assert isinstance(one, dict)
        assert list(one) == list(other)
        for key in other:
            same(one[key], other[key])
    elif isinstance(other, tuple):
        assert isinstance(one, tuple)
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right)
    else:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("obs", "action", "place", "ends_after"),
    [
        ("vector", "box", "here", 5),
        ("dict", "discrete", "here", 99),
        pytest.param("image", "multi_discrete", "processes", 5, marks=pytest.mark.slow),
        ("tuple", "multi_binary", "here", 5),
        ("choice", "discrete", "here", 99),
        pytest.param("dict", "box", "workers", 5, marks=pytest.mark.slow),
        pytest.param("image", "box", "workers", 99, marks=pytest.mark.slow),
    ],
)
def test_steps_are_those_of_a_dummy_vec_env(obs: str, action: str, place: str, ends_after: int) -> None:
    ours, theirs = pair(obs, action, place, ends_after)
    with closing(ours), closing(theirs):
        assert (ours.num_envs, ours.observation_space, ours.action_space) == (
            theirs.num_envs,
            theirs.observation_space,
            theirs.action_space,
        )
        same(ours.reset(), theirs.reset())
        ours.action_space.seed(3)
        ended = 0
        for _ in range(20):
            actions = np.stack([ours.action_space.sample() for _ in range(2)])
            mine, other = ours.step(actions), theirs.step(actions)
            for left, right in zip(mine[:3], other[:3], strict=True):
                same(left, right)
            assert isinstance(mine[3], list | tuple)
            for info, expected, done in zip(mine[3], other[3], mine[2], strict=True):
                assert info["TimeLimit.truncated"] == expected["TimeLimit.truncated"] == (done and ends_after == 99)
                assert ("terminal_observation" in info) == ("terminal_observation" in expected) == bool(done)
                if done:
                    same(info["terminal_observation"], expected["terminal_observation"])
                    assert info["taken"] == expected["taken"]
                    assert info["episode"]["l"] == info["taken"]
                    ended += 1
        assert ended >= 4


@pytest.mark.parametrize("place", EACH_PLACE)
def test_attributes_methods_seeds_and_options(place: str) -> None:
    ours, theirs = pair("vector", "box", place)
    with closing(ours), closing(theirs):
        for env in (ours, theirs):
            env.reset()
            assert env.get_attr("scale") == [1.0, 1.0]
            env.set_attr("scale", 3.0, indices=1)
            assert env.get_attr("scale", indices=[0, 1]) == [1.0, 3.0]
            assert env.env_method("scaled", 2.0, plus=1.0) == [3.0, 7.0]
            assert env.env_method("scaled", 2.0, indices=[1]) == [6.0]
            assert env.get_attr("steps", indices=0) == [0]
            assert env.has_attr("scale")
            assert not env.has_attr("no_such_attribute")
            assert env.env_is_wrapped(gym.Wrapper) == [False, False]
            with pytest.raises(AttributeError):
                env.get_attr("no_such_attribute")
            env.set_options([{"start": 1}, {"start": 2}])
            env.reset()
            assert env.get_attr("seen_options") == [{"start": 1}, {"start": 2}]
            env.set_options({"start": 3})
            env.reset()
            assert env.get_attr("seen_options") == [{"start": 3}, {"start": 3}]
            env.reset()
            assert env.get_attr("seen_options") == [{}, {}]
            assert env.render_mode is None
        first, _, third = [ours.seed(seed) and ours.reset() for seed in (5, 6, 5)]
        np.testing.assert_array_equal(first, third)
        assert not np.array_equal(first[0], first[1])
        assert not np.array_equal(ours.reset(), third)
    ours.close()  # a second time


@pytest.mark.parametrize("place", [EACH_PLACE[0], EACH_PLACE[2]])
def test_all_infos_come_along_where_they_are_asked_for(place: str) -> None:
    config = {"obs": "vector", "action": "box"}
    with closing(RayVecEnv(Anything, num_envs=2, infos=True, env_config=config, **PLACES[place])) as env:
        env.reset()
        for step in range(1, 7):
            *_, dones, infos = env.step(np.zeros((2, 2), np.float32))
            assert [info["taken"] for info in infos] == [step if step < 6 else 1] * 2
            assert all(("terminal_observation" in info) == done for info, done in zip(infos, dones, strict=True))


@pytest.mark.parametrize("place", ["here", "processes"])
def test_pictures_are_those_of_the_environments(place: str) -> None:
    config = {"render_mode": "rgb_array"}
    env = RayVecEnv("MountainCar-v0", num_envs=2, env_config=config, **PLACES[place])
    theirs = DummyVecEnv([lambda: gym.make("MountainCar-v0", **config)] * 2)
    env.seed(7)
    theirs._seeds = [reset_seed(0, row, (7 << 32) + 1) for row in range(2)]
    with closing(env), closing(theirs):
        assert env.render_mode == theirs.render_mode == "rgb_array"
        for each in (env, theirs):
            each.reset()
            each.step(np.array([0, 2]))
        for mine, other in zip(env.get_images(), theirs.get_images(), strict=True):
            np.testing.assert_array_equal(mine, other)
        assert env.render().shape == theirs.render().shape


def test_the_wrappers_of_stable_baselines_go_around_it() -> None:
    box = {"env_config": {"obs": "dict", "action": "box"}}
    with closing(VecCheckNan(VecTransposeImage(RayVecEnv(Anything, num_envs=2, **box)), raise_exception=True)) as env:
        assert env.reset()["picture"].shape == (2, 3, 36, 36)
        for _ in range(6):
            *_, dones, infos = env.step(np.zeros((2, 2), np.float32))
            if dones.any():
                assert infos[0]["terminal_observation"]["picture"].shape == (3, 36, 36)
        assert is_vecenv_wrapped(env, VecTransposeImage)
    vector = {"env_config": {"obs": "vector", "action": "box"}}
    with closing(VecNormalize(VecMonitor(VecFrameStack(RayVecEnv(Anything, num_envs=2, **vector), 3)))) as env:
        assert env.reset().shape == (2, 9)
        for _ in range(5):
            _, rewards, dones, infos = env.step(np.ones((2, 2), np.float32))
        assert dones.all()
        assert rewards.dtype == np.float32
        assert [info["episode"]["l"] for info in infos] == [5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_policies_for_dicts_images_and_off_policy_learning_train_on_it(place: str) -> None:
    config = {"obs": "dict", "action": "box", "ends_after": 99}
    with closing(RayVecEnv(Anything, num_envs=2, env_config=config, **PLACES[place])) as env:
        model = A2C("MultiInputPolicy", env, n_steps=8, seed=1, device="cpu")
        before = [each.detach().clone() for each in model.policy.parameters()]
        model.learn(64)
        assert any(not one.equal(other) for one, other in zip(before, model.policy.parameters(), strict=True))
        assert len(model.ep_info_buffer) == 8  # eight steps each
    config = {"obs": "vector", "action": "box"}
    with closing(RayVecEnv(Anything, num_envs=2, env_config=config, **PLACES[place])) as env:
        model = SAC("MlpPolicy", env, learning_starts=16, buffer_size=100, batch_size=8, seed=1, device="cpu")
        model.learn(40)
        assert model.replay_buffer.size() == 20
        ends = model.replay_buffer.dones[:20].sum(0)
        assert ends.tolist() == [4.0, 4.0]
