"""Environments that tell their state: what may be in it, and what is done where they cannot."""

from __future__ import annotations

import json
import math

import gymnasium as gym
import numpy as np
import pytest

from shoal.data.state import State
from shoal.envs.env_states import offers_state, restore_state, state_of
from shoal.errors import EnvError


class Box(gym.Env):
    """Keeps whatever it is given."""

    def __init__(self, state=None) -> None:
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state) -> None:
        self.state = state


def there_and_back(value):
    state = state_of(Box(value))
    assert state is not None
    saved = State(json.loads(json.dumps(state.values, allow_nan=False)), {"bytes": state.arrays["bytes"].copy()})
    other = Box()
    restore_state(other, saved)
    return other.state


def test_a_state_may_have_text_numbers_bytes_arrays_and_what_holds_them() -> None:
    value = {
        "name": "ø",
        "flags": [True, None, -1, 2**80, 1.5e-300],
        "pair": (1, (2.0, b"\xff\0")),
        "empty": {"array": np.zeros((0, 3)), "bytes": b"", "list": [], "tuple": ()},
    }
    assert there_and_back({key: value[key] for key in ("name", "flags", "pair")}) == {
        key: value[key] for key in ("name", "flags", "pair")
    }
    empty = there_and_back(value)["empty"]
    assert empty["array"].shape == (0, 3)
    assert (empty["bytes"], empty["list"], empty["tuple"]) == (b"", [], ())
    assert math.isnan(there_and_back([math.nan])[0])
    assert there_and_back([math.inf, -math.inf]) == [math.inf, -math.inf]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i1", "u8", "?", ">f8", "S3", "U2", "M8[s]"])
def test_arrays_keep_their_type_shape_and_bits(dtype) -> None:
    array = np.arange(24).astype("i8").view("u1")[:24].reshape(2, 3, 4).astype("i8").astype(dtype)
    for value in (array, array.T, array[1, 2, 3:].reshape(())):
        back = there_and_back({"a": value})["a"]
        assert back.dtype == np.dtype(dtype)
        assert back.shape == np.shape(value)
        np.testing.assert_array_equal(back, value)
        back[...] = back  # it may be written to


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [object()]}, "state.a[0] is of type object"),
        ({1: 2}, "has the key 1"),
        ({"$array": 2}, "has the key '$array'"),
        ({"a": np.array([None])}, "state.a is an array of object"),
        ({"a": {1, 2}}, "state.a is of type set"),
    ],
)
def test_what_cannot_be_saved_is_named(value, sentence) -> None:
    with pytest.raises(EnvError) as caught:
        state_of(Box(value))
    assert sentence in str(caught.value)


def test_the_generator_of_an_environment_comes_with_it() -> None:
    env, other = Box({}), Box()
    env.reset(seed=3)
    other.reset(seed=8)
    env.np_random.random(5)
    state = state_of(env)
    restore_state(other, state)
    assert env.np_random.random() == other.np_random.random()


def test_only_both_methods_in_their_own_meaning_are_the_protocol() -> None:
    class OnlyGet(gym.Env):
        def get_state(self):
            return 1

    class Physics(OnlyGet):
        def set_state(self, positions, speeds):  # as MuJoCo's environments have it
            pass

    class Careful(OnlyGet):
        def set_state(self, state, strict=True):
            pass

    assert offers_state(Box())
    assert offers_state(Careful())
    assert not offers_state(OnlyGet())
    assert not offers_state(Physics())
    assert not offers_state(gym.wrappers.TimeLimit(Box(), 5))
    assert not offers_state(gym.make("CartPole-v1").unwrapped)


def test_no_state_is_a_state_too() -> None:
    assert state_of(Box(None)) is None
