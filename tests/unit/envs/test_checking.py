from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal.envs.checking import check_first_steps
from shoal.envs.context import EnvContext
from shoal.envs.importing import INSTALLED
from shoal.envs.legacy import LegacyGymEnv
from shoal.envs.making import env_maker
from shoal.errors import ConfigError, EnvError

old_gym = INSTALLED.load_file(str(Path(__file__).with_name("old_gym.py")))

GOOD = np.zeros(2, np.float32)


class Probe(gymnasium.Env):
    """Returns what it is told to return."""

    def __init__(self, reset: Any = (GOOD, {}), step: Any = (GOOD, 0.0, False, False, {}), **spaces_: Any) -> None:
        self.observation_space = spaces_.get("observation_space", spaces.Box(-1, 1, (2,)))
        self.action_space = spaces_.get("action_space", spaces.Discrete(2))
        self._reset, self._step = reset, step
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if isinstance(self._reset, BaseException):
            raise self._reset
        return self._reset

    def step(self, action):
        if isinstance(self._step, BaseException):
            raise self._step
        return self._step

    def close(self):
        self.closed = True


def check(**keywords: Any):
    return check_first_steps(lambda: Probe(**keywords))


def test_a_sound_environment_has_no_findings() -> None:
    report = check()
    assert report.warnings == ()
    assert not report.legacy
    assert not report.env.closed


class Exiting(gymnasium.Env):
    """Leaves the program when it is asked for its space."""

    action_space = spaces.Discrete(2)

    @property
    def observation_space(self):
        raise SystemExit(3)

    def reset(self, *, seed=None, options=None): ...

    def step(self, action): ...


@pytest.fixture
def handled() -> Iterator[None]:
    """SIGINT is answered by a handler of our own, as it is during a run."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("leaving", [SystemExit(0), SystemExit(3), KeyboardInterrupt("mine")])
def test_a_simulator_that_leaves_the_program_has_failed(leaving: BaseException) -> None:
    named = type(leaving).__name__
    with pytest.raises(EnvError, match=rf"its first reset\(\) failed: {named}: .*test_checking.py:") as refused:
        check(reset=leaving)
    assert refused.value.exit_code == 2
    (warning,) = check(step=leaving).warnings
    assert f"raised {named}" in warning


def test_a_space_that_cannot_be_read_is_a_failure() -> None:
    with pytest.raises(EnvError, match="reading its spaces failed: SystemExit: 3"):
        env_maker(Exiting).make(EnvContext())


def test_a_signal_is_no_failure_of_the_simulator() -> None:
    class Signalled(KeyboardInterrupt):
        """As a run's own handlers raise it."""

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test before this one may have left another
    try:
        for interrupt in (KeyboardInterrupt(), Signalled()):
            with pytest.raises(type(interrupt)):
                check(reset=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "CartPole-v0", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_gymnasiums_own_are_sound(env_id: str) -> None:
    maker = env_maker(env_id)
    report = check_first_steps(lambda: maker.make(EnvContext()))
    assert report.warnings == ()
    report.env.reset(seed=3)
    report.env.close()


def test_the_seeds_environment_is_sound_at_its_start() -> None:
    maker = env_maker(old_gym.my_environment)
    report = check_first_steps(lambda: maker.make(EnvContext({"Scalar": 0.5})))
    assert report.warnings == ()
    assert not report.legacy  # the maker saw it by itself


def test_a_step_of_four_values_gets_the_adapter() -> None:
    report = check_first_steps(lambda: env_maker(old_gym.NewResetOldStep).make(EnvContext()))
    assert report.legacy
    assert isinstance(report.env, LegacyGymEnv)


def test_gymnasiums_wrappers_do_not_hide_a_step_of_four_values() -> None:
    gymnasium.register("HalfOld-v0", entry_point=old_gym.NewResetOldStep, max_episode_steps=5)
    report = check_first_steps(lambda: env_maker("HalfOld-v0").make(EnvContext()))
    assert report.legacy
    report.env.reset(seed=0)
    assert len(report.env.step(0)) == 5


def test_a_reset_without_info_gets_the_adapter() -> None:
    report = check(reset=GOOD)
    assert report.legacy
    assert report.env.reset(seed=0)[1] == {}


def test_the_first_step_leaves_the_action_spaces_stream_alone() -> None:
    space = spaces.Discrete(1000)
    space.seed(4)
    expected = space.sample()
    space.seed(4)
    check(action_space=space)
    assert space.sample() == expected


def obs(value: Any) -> dict[str, Any]:
    return {"reset": (value, {}), "step": (value, 0.0, False, False, {})}


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (obs(np.zeros(2)), "reset(): the observation is float64, but its space says float32: shoal converts it"),
        (
            obs(np.full(2, 9, np.float32)),
            "reset(): the observation is outside its space Box(-1.0, 1.0, (2,), float32)",
        ),
        (obs(np.full(2, np.nan, np.float32)), "reset(): the observation is not finite (NaN or infinity)"),
        ({"step": (GOOD, float("nan"), False, False, {})}, "step(): the reward is not finite (nan)"),
        ({"step": (GOOD, 1.0, 1, False, {})}, "step(): terminated is 1, not a bool: shoal reads it as True"),
        (
            {**obs({"a": 0, "b": 1}), "observation_space": spaces.Dict(a=spaces.Discrete(2))},
            "reset() gives b, which observation_space does not have: the policy does not see it",
        ),
        (
            {**obs(np.array([4, 0])), "observation_space": spaces.MultiDiscrete([4, 49])},
            "reset(): the observation is outside its space MultiDiscrete([ 4 49])",
        ),
    ],
)
def test_warnings(keywords: dict[str, Any], sentence: str) -> None:
    assert sentence in check(**keywords).warnings


def test_a_list_is_as_good_as_an_array() -> None:
    assert check(**obs([0.0, 0.5])).warnings == ()


def test_a_step_that_raises_is_a_warning_with_its_place() -> None:
    (warning,) = check(step=ValueError("diverged")).warnings
    assert "raised ValueError: diverged" in warning
    assert "test_checking.py:" in warning


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (obs(np.zeros(3)), r"has shape \(3,\), its space says \(2,\)"),
        (obs("text"), r"has shape \(\), its space says \(2,\)"),
        (obs(["a", "b"]), "must hold numbers"),
        (obs([[1], [1, 2]]), "is ragged"),
        ({**obs({}), "observation_space": spaces.Dict(a=spaces.Discrete(2))}, "observation 'a' is missing"),
        ({"reset": None}, r"reset\(\) must return \(obs, info\) with info a dict \(got None\)"),
        ({"reset": ValueError("no case folder")}, r"first reset\(\) failed: ValueError: no case folder"),
        ({"step": (GOOD, 0.0, False)}, r"obs, reward, terminated, truncated, info \(got 3 values\)"),
        ({"step": None}, r"obs, reward, terminated, truncated, info \(got NoneType\)"),
        ({"step": (GOOD, None, False, False, {})}, r"a number as reward \(got None\)"),
        ({"step": (GOOD, np.zeros(1), False, False, {})}, r"a number as reward \(got an array of shape \(1,\)"),
        ({"step": (GOOD, 0.0, None, False, {})}, r"True or False as terminated \(got None\)"),
        ({"step": (GOOD, 0.0, False, "no", {})}, r"True or False as truncated \(got str\)"),
        ({"step": (GOOD, 0.0, False, False, None)}, "a dict as info"),
        ({"observation_space": 3}, r"observation_space must be a gymnasium\.spaces\.Space \(got int\)"),
    ],
)
def test_errors(keywords: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence) as caught:
        check(**keywords)
    assert caught.value.exit_code == 2


def test_an_environment_refused_is_closed() -> None:
    env = Probe(step=None)
    with pytest.raises(EnvError):
        check_first_steps(lambda: env)
    assert env.closed


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
    ],
)
def test_spaces_that_cannot_be_learned(space: spaces.Space[Any]) -> None:
    kind = type(space).__name__
    with pytest.raises(ConfigError, match=f"'words': {kind}") as caught:
        check(observation_space=spaces.Dict(words=space), action_space=space)
    assert len(caught.value.problems) == 2


def test_vector_environments() -> None:
    def make(**keywords: Any):
        return gymnasium.make_vec("CartPole-v1", num_envs=3, **keywords)

    maker = env_maker(make)
    report = check_first_steps(lambda: maker.make(EnvContext()))
    assert report.warnings == ()
    assert report.env.num_envs == 3
    report.env.close()


def test_a_vector_environment_with_wrong_rewards() -> None:
    class Wrong(gymnasium.vector.VectorEnv):
        num_envs = 2
        single_observation_space = spaces.Discrete(2)
        observation_space = spaces.MultiDiscrete([2, 2])
        single_action_space = spaces.Discrete(2)
        action_space = spaces.MultiDiscrete([2, 2])

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.int64), {}

        def step(self, actions):
            return np.zeros(2, np.int64), 1.0, np.zeros(2, bool), np.zeros(2, bool), {}

    with pytest.raises(EnvError, match=r"reward of shape \(2,\) \(got shape \(\)\)"):
        check_first_steps(Wrong)
