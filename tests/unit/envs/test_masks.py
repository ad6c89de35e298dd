"""What an `action_mask` may look like, where its flags lie, and what of it is refused."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from shoal.envs.checking import check_first_steps
from shoal.envs.masks import mask_spec
from shoal.envs.native import NativeVector
from shoal.envs.observations import ObsSpec
from shoal.envs.spaces import ActionSpec
from shoal.envs.vector import PythonVector, Steps
from shoal.errors import ConfigError, EnvError

BOX = spaces.Box(-1, 1, (2,))
HYBRID = spaces.Dict(go=spaces.Discrete(3), how=BOX, what=spaces.MultiDiscrete([2, 4]))


def flags(*shape: int) -> spaces.Box:
    return spaces.Box(0, 1, shape, np.int8)


def obs_space(mask: spaces.Space) -> spaces.Dict:
    return spaces.Dict(observations=BOX, action_mask=mask)


@pytest.mark.parametrize(
    ("mask", "action", "choices"),
    [
        (flags(4), spaces.Discrete(4), [(0, 4)]),
        (spaces.MultiBinary(4), spaces.Discrete(4, start=7), [(0, 4)]),
        (flags(6), spaces.MultiDiscrete([2, 4]), [(0, 2), (1, 4)]),
        (flags(2, 3), spaces.MultiDiscrete([3, 3]), [(0, 3), (1, 3)]),
        (spaces.Tuple([flags(2), flags(4)]), spaces.MultiDiscrete([2, 4]), [(0, 2), (1, 4)]),
        (flags(6), spaces.Box(0, 2, (2,), np.int8), [(0, 3), (1, 3)]),
        (
            spaces.Tuple([flags(2), flags(3)]),
            spaces.Tuple([spaces.Discrete(2), BOX, spaces.Discrete(3)]),
            [(0, 2), (3, 3)],
        ),
        (spaces.Dict(go=flags(3)), HYBRID, [(0, 3)]),
        (spaces.Dict(what=spaces.Tuple([flags(2), flags(4)])), HYBRID, [(3, 2), (4, 4)]),
        (flags(9), HYBRID, [(0, 3), (3, 2), (4, 4)]),
    ],
    ids=str,
)
def test_flags_are_about_the_choices_of_the_action(mask, action, choices) -> None:
    spec = mask_spec(obs_space(mask), ActionSpec(action))
    assert spec is not None
    assert list(spec.choices) == choices
    assert spec.size == sum(count for _, count in choices)


@pytest.mark.parametrize(
    ("mask", "action", "words"),
    [
        (flags(2), BOX, "can mask Discrete and MultiDiscrete actions, and this action is a Box; leave the mask out"),
        (flags(3), spaces.MultiBinary(3), "this action is a MultiBinary"),
        (spaces.Dict(how=flags(2)), HYBRID, "'action_mask/how' can mask .* this action is a Box"),
        (spaces.Dict(og=flags(3)), HYBRID, "'action_mask/og' masks an action that action_space does not have"),
        (flags(3), spaces.Discrete(4), r"one flag for each of 4 values \(got Box.*\); use Box\(0, 1, \(4,\)\)"),
        (spaces.Tuple([flags(2)]), spaces.MultiDiscrete([2, 4]), "1 masks for 2 choices; give one for each"),
        (spaces.Tuple([flags(2), flags(3)]), spaces.MultiDiscrete([2, 4]), "'action_mask/1' must have one flag"),
        (spaces.Dict(), HYBRID, "holds no flags"),
    ],
    ids=str,
)
def test_a_mask_that_does_not_fit_is_refused_with_what_to_do(mask, action, words) -> None:
    with pytest.raises(ConfigError, match=words):
        ObsSpec(obs_space(mask), actions=ActionSpec(action))


def test_the_mask_lies_apart_and_no_network_sees_it_as_a_number() -> None:
    spec = ObsSpec(obs_space(flags(3)), actions=ActionSpec(spaces.Discrete(3)))
    assert (spec.kinds, spec.shapes) == (("vector", "mask"), ((2,), (3,)))
    rows = spec.allocate(2)
    assert rows[1].all()
    obs = {"observations": np.array([0.5, -1]), "action_mask": np.array([0, 1, 1])}
    spec.put(obs, rows, 0)
    spec.put_all([obs, {**obs, "action_mask": [True, False, False]}], rows)
    assert rows[1].tolist() == [[False, True, True], [True, False, False]]
    back = spec.get(rows, 0)
    assert spec.space.contains(back)
    assert back["action_mask"].tolist() == [0, 1, 1]
    plain = ObsSpec(obs_space(flags(3)))
    assert plain.kinds == ("vector",)
    with pytest.raises(ConfigError, match="holds no number but action_mask"):
        ObsSpec(spaces.Dict(action_mask=flags(3)), actions=ActionSpec(spaces.Discrete(3)))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([0, 0, 0], "allows no action: all its flags are 0"),
        ([0, 0.5, 1], "must hold only 0 and 1"),
        ([0, -np.inf, 1], "must hold only 0 and 1"),
        ([0, np.nan, 1], "must hold only 0 and 1"),
        ([0, 1], r"'action_mask' has shape \(2,\), its space says \(3,\)"),
        (None, r"'action_mask' has shape \(\)"),
    ],
    ids=str,
)
def test_flags_that_make_no_sense_are_refused(mask, words) -> None:
    spec = ObsSpec(obs_space(flags(3)), actions=ActionSpec(spaces.Discrete(3)))
    with pytest.raises(ValueError, match=words):
        spec.put({"observations": np.zeros(2), "action_mask": mask}, spec.allocate(1), 0)


def test_each_choice_needs_a_value_unless_the_episode_has_ended() -> None:
    spec = ObsSpec(obs_space(flags(6)), actions=ActionSpec(spaces.MultiDiscrete([2, 4])))
    obs = {"observations": np.zeros(2), "action_mask": [1, 1, 0, 0, 0, 0]}
    with pytest.raises(ValueError, match="no value of choice 1"):
        spec.put(obs, spec.allocate(1), 0)
    rows = spec.allocate(3)
    spec.put(obs, rows, 1, ended=True)
    assert spec.problem(rows) == (1, "action_mask allows no value of choice 1: all its flags are 0")
    assert spec.problem(rows, np.array([False, True, False])) is None


class Closing(gym.Env):
    """Fewer doors are open at every step; `terminates` or not when none is left."""

    observation_space = spaces.Dict(observations=spaces.Box(0, 9, (1,)), action_mask=spaces.MultiBinary(3))
    action_space = spaces.Discrete(3)

    def __init__(self, terminates: bool = True) -> None:
        self.terminates = terminates

    def seen(self):
        return {"observations": np.array([self.time], np.float32), "action_mask": np.arange(3) >= self.time}

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        assert action >= self.time
        self.time += 1
        return self.seen(), 1.0, self.terminates and self.time == 3, False, {}


def stepped(vector, spec: ObsSpec, num_envs: int):
    steps = Steps(
        spec.allocate(num_envs),
        np.zeros(num_envs, np.float32),
        np.zeros(num_envs, bool),
        np.zeros(num_envs, bool),
        np.ones(num_envs, bool),
    )
    vector.step(np.full((num_envs, 1), 2), None, steps)
    return steps


def test_nothing_may_be_allowed_where_an_episode_ends_and_only_there() -> None:
    actions = ActionSpec(Closing.action_space)
    spec = ObsSpec(Closing.observation_space, actions=actions)
    vector = PythonVector(lambda row: (Closing(row != 1), None), 3, spec, actions, seed=1, first_index=10)
    vector.reset(spec.allocate(3))
    for _ in range(3):
        steps = stepped(vector, spec, 3)
    assert steps.terminated.tolist() == [True, True, True]
    assert steps.valid.tolist() == [True, False, True]
    assert steps.obs[1].all()  # where each begins anew
    (incident,) = vector.incidents
    assert (incident.env_index, incident.step) == (11, 3)
    assert incident.cause == "ValueError: action_mask allows no action: all its flags are 0"


def test_a_native_vector_ends_with_environment_and_step() -> None:
    actions = ActionSpec(Closing.action_space)
    spec = ObsSpec(Closing.observation_space, actions=actions)
    vector = NativeVector(SyncVectorEnv([Closing, lambda: Closing(False)]), spec, actions, seed=1, first_index=4)
    vector.reset(spec.allocate(2))
    for _ in range(2):
        stepped(vector, spec, 2)
    with pytest.raises(EnvError, match="environment 5 of the vector, at step 3 of its episode: action_mask allows no"):
        stepped(vector, spec, 2)


@pytest.mark.parametrize("make", [Closing, lambda: SyncVectorEnv([Closing] * 2)], ids=["one", "vector"])
def test_the_first_look_takes_an_allowed_action(make) -> None:
    class Picky(Closing):
        def seen(self):
            return {**super().seen(), "action_mask": np.arange(3) == 2}

        def step(self, action):
            assert action == 2
            return super().step(action)

    made = Picky if make is Closing else (lambda: SyncVectorEnv([Picky] * 2))
    assert check_first_steps(made).warnings == ()


def test_an_episode_that_begins_with_nothing_allowed_is_refused_at_the_first_look() -> None:
    class Shut(Closing):
        def seen(self):
            return {**super().seen(), "action_mask": np.zeros(3, np.int8)}

    with pytest.raises(EnvError, match=r"^reset\(\): action_mask allows no action: all its flags are 0"):
        check_first_steps(Shut)
