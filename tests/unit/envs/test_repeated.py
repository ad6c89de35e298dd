"""Observations of varying length: the space, and how they lie in arrays of one size."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import shoal
from shoal import Repeated
from shoal.envs.checking import check_first_steps
from shoal.envs.native import NativeVector
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.errors import ConfigError, EnvError

BOX = spaces.Box(-1, 1, (2,))
UNIT = spaces.Dict(place=BOX, kind=spaces.Discrete(3, start=1), marks=spaces.MultiBinary(2))


def test_a_repeated_space_knows_its_members() -> None:
    space = Repeated(BOX, 3)
    space.seed(0)
    lengths = {len(space.sample()) for _ in range(50)}
    assert lengths == {0, 1, 2, 3}
    assert all(space.contains(space.sample()) for _ in range(20))
    assert space.contains([np.zeros(2, np.float32)])
    assert not space.contains([np.zeros(2, np.float32)] * 4)
    assert not space.contains([np.zeros(3, np.float32)])
    assert not space.contains(np.zeros((1, 2), np.float32))
    assert len(space.sample(mask=(np.int64(9), None))) == 3
    assert space == Repeated(BOX, 3) == pickle.loads(pickle.dumps(space))
    assert space != Repeated(BOX, 4)
    assert str(space).endswith(", 3)")


@pytest.mark.parametrize("max_len", [0, -1, 2.5, True, "3"])
def test_a_length_that_is_none_is_refused(max_len) -> None:
    with pytest.raises(ConfigError, match="max_len must be a whole number, at least 1"):
        Repeated(BOX, max_len)


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (Repeated(BOX, 4), (4, 3)),
        (Repeated(spaces.Discrete(5), 4), (4, 2)),
        (Repeated(spaces.Box(-1, 1, ()), 4), (4, 2)),
        (Repeated(UNIT, 4), (4, 6)),
        (Repeated(spaces.Box(0, 255, (10, 10, 3), np.uint8), 4), (4, 301)),
        (spaces.Sequence(BOX), (6, 3)),
        (spaces.Sequence(BOX, stack=True), (6, 3)),
        (spaces.Sequence(UNIT, stack=True), (6, 6)),
    ],
    ids=str,
)
def test_items_are_padded_and_come_back(space, shape) -> None:
    space = spaces.Dict(me=BOX, inner=spaces.Tuple([space, spaces.Discrete(2)]))
    space.seed(3)
    spec = ObsSpec(space, max_len=6)
    assert (spec.kinds, spec.shapes) == (("vector", "items"), ((3,), shape))
    seen = []
    while len(seen) < 12:
        obs = space.sample()
        items = obs["inner"][0]
        count = len(items["place"] if isinstance(items, dict) else items)
        if count <= shape[0]:
            seen.append((obs, count))
    observations = [obs for obs, _ in seen]
    rows, at_once = spec.allocate(12), spec.allocate(12)
    rows[1][:] = 9
    for index, (obs, count) in enumerate(seen):
        spec.put(obs, rows, index)
        assert rows[1][index, :, 0].tolist() == [1.0] * count + [0.0] * (shape[0] - count)
        assert not rows[1][index, count:].any()
        assert space.contains(spec.get(rows, index))
    spec.put_all(observations, at_once)
    for mine, theirs in zip(rows, at_once, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (Repeated(BOX, 2), [np.zeros(2)] * 3, "observation has 3 items, and its space's max_len is 2; make it larger"),
        (spaces.Sequence(BOX), [np.zeros(2)] * 7, "has 7 items, and model.sequence_max_len is 6"),
        (Repeated(BOX, 2), [np.zeros(2), np.zeros(3)], r"item 1 of observation: observation has shape \(3,\)"),
        (Repeated(UNIT, 2), [{"place": np.zeros(2)}], "item 0 of observation: observation lacks 'kind'"),
        (Repeated(BOX, 2), 3.0, r"observation is not a tuple or list of items \(got float\)"),
        (Repeated(BOX, 2), None, "not a tuple or list"),
        (Repeated(BOX, 2), [np.array([0, np.nan])], "not finite"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(space, obs, words) -> None:
    spec = ObsSpec(space, max_len=6)
    with pytest.raises(ValueError, match=words):
        spec.put(obs, spec.allocate(1), 0)


def test_an_open_length_and_sequences_of_sequences_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'a': a Sequence has no maximum length; set model: \{sequence_max_len: 32\}"
    ):
        ObsSpec(spaces.Dict(a=spaces.Sequence(BOX)))
    with pytest.raises(ConfigError, match="a sequence of sequences"):
        ObsSpec(Repeated(Repeated(BOX, 2), 2))


class Growing(gym.Env):
    """One item more at every step."""

    observation_space: spaces.Space = Repeated(BOX, 2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.items = []
        return tuple(self.items), {}

    def step(self, action):
        self.items.append(np.zeros(2, np.float32))
        return tuple(self.items), 0.0, False, False, {}


def test_a_native_vector_of_sequences() -> None:
    from shoal.envs.vector import Steps

    spec, actions = ObsSpec(Growing.observation_space), ActionSpec(Growing.action_space)
    vector = NativeVector(SyncVectorEnv([Growing, Growing]), spec, actions, seed=1)
    obs = spec.allocate(2)
    vector.reset(obs)
    assert not obs[0].any()

    def step() -> Steps:
        steps = Steps(spec.allocate(2), np.zeros(2, np.float32), np.zeros(2, bool), np.zeros(2, bool), np.ones(2, bool))
        vector.step(np.zeros((2, 1), np.int64), None, steps)
        return steps

    for count in (1, 2):
        assert step().obs[0][:, :, 0].sum(axis=1).tolist() == [count, count]
    with pytest.raises(
        EnvError, match="environment 0 of the vector, at step 3 of its episode: observation has 3 items"
    ):
        step()


def test_the_first_look_looks_at_the_items() -> None:
    class TooLong(Growing):
        def reset(self, *, seed=None, options=None):
            return (np.zeros(2, np.float32),) * 3, {}

    class Wrong(Growing):
        def reset(self, *, seed=None, options=None):
            return (np.zeros(3, np.float32),), {}

    assert check_first_steps(Growing).warnings == ()
    with pytest.raises(EnvError, match="has 3 items, its space says 2 at most"):
        check_first_steps(TooLong)
    with pytest.raises(EnvError, match=r"an item: the observation has shape \(3,\)"):
        check_first_steps(Wrong)


@pytest.mark.parametrize("item", [BOX, spaces.Discrete(5), UNIT, spaces.Tuple([BOX, spaces.Discrete(2)])], ids=str)
def test_a_stack_may_be_empty_and_is_trained_on(item) -> None:
    space = spaces.Sequence(item, stack=True)
    spec = ObsSpec(space, max_len=6)
    blank = spec.get(spec.allocate(1), 0)
    assert space.contains(blank)
    spec.put(blank, spec.allocate(1), 0)
    assert not spec.allocate(1)[0].any()

    class Crowd(gym.Env):
        observation_space = space
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.left = 5
            return self.look(), {}

        def step(self, action):
            self.left -= 1
            return self.look(), 1.0, self.left == 0, False, {}

        def look(self):
            rows = spec.allocate(1)
            rows[0][0, : self.left, 0] = 1
            return spec.get(rows, 0)

    config = {"model": {"sequence_max_len": 6}, "train_batch_size": 32, "num_envs_per_worker": 2}
    with shoal.PPO(env=Crowd, config={**config, "max_env_failures": 0}) as trainer:
        assert trainer.train()["episode_len_mean"] == 5
