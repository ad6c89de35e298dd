"""What people take for one environment: each is named as what it is, with what to do."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.experimental.functional import FuncEnv

import shoal
from shoal.envs.agents import AgentsEnv
from shoal.envs.checking import check_first_steps
from shoal.envs.context import EnvContext
from shoal.envs.env_errors import notice_once
from shoal.envs.importing import UserCode
from shoal.envs.legacy import LegacyGymEnv
from shoal.envs.making import env_maker
from shoal.errors import EnvError

BOX = spaces.Box(-1, 1, (3,), np.float32)


class Closing:
    """Counts how often something was closed."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


class Parallel(Closing):
    """As PettingZoo's ParallelEnv."""

    possible_agents = agents = ("a", "b")

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return dict.fromkeys(self.agents, np.zeros(3)), {}

    def step(self, actions):
        return {}, {}, {}, {}, {}


class Aec(Parallel):
    """As PettingZoo's AECEnv."""

    metadata: ClassVar[dict] = {}

    def agent_iter(self):
        yield "a"

    def last(self):
        return None


class MultiAgentEnv(gymnasium.Env):
    """As RLlib's."""

    observation_space, action_space = BOX, spaces.Discrete(2)


class Pool(Closing):
    """As EnvPool's."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def _nothing(self, *args):
        pass

    reset = step = send = recv = async_reset = _nothing


class Gymnax:
    default_params = 3

    def observation_space(self, params):
        return BOX

    def _nothing(self, key, params=None):
        pass

    reset = step = step_env = reset_env = action_space = _nothing


class Keyed:
    observation_space, action_space = BOX, spaces.Discrete(2)

    def reset(self, key):
        pass

    def step(self, state, action):
        pass


class Jumanji(Keyed):
    observation_spec = action_spec = None


class DeepMind:
    def observation_spec(self):
        pass

    def reset(self):
        pass

    action_spec = step = observation_spec


class Brax(Keyed):
    observation_size, action_size, backend = 3, 1, "spring"


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (MultiAgentEnv, r"several agents \(RLlib's MultiAgentEnv\); .* name a pettingzoo\.ParallelEnv around it"),
        (Pool, r"a batch of environments \(EnvPool\); make it with envpool\.make_gymnasium"),
        (Gymnax, r"a functional environment of JAX \(gymnax\); .* gymnax\.wrappers\.GymnaxToGymWrapper\(env, params\)"),
        (FuncEnv, r"JAX \(Gymnasium's FuncEnv\); .* gymnasium\.envs\.functional_jax_env\.FunctionalJaxEnv\(env\)"),
        (Keyed, r"JAX \(reset\(key\) gives the state\); .* a gymnasium\.Env that keeps the state and the key"),
        (Jumanji, r"JAX \(Jumanji\); .* jumanji\.wrappers\.JumanjiToGymWrapper\(env\)"),
        (Brax, r"JAX \(Brax\); .* brax\.envs\.wrappers\.gym\.GymWrapper\(env\)"),
        (DeepMind, r"an environment of dm_env; .* shimmy\.DmControlCompatibilityV0\(env\)"),
    ],
)
def test_each_is_named_as_what_it_is_and_closed(kind: type, sentence: str) -> None:
    Closing.closed = kind.closed = 0  # type: ignore[attr-defined]
    for made in (kind(), (kind(), "parameters")):
        with pytest.raises(EnvError, match=sentence) as caught:
            env_maker(lambda config, made=made: made).make(EnvContext())
        assert caught.value.exit_code == 2
    assert kind.closed == issubclass(kind, Closing)  # type: ignore[attr-defined]


def test_several_agents_are_known_by_what_they_have() -> None:
    env = env_maker(Parallel).make(EnvContext())
    assert isinstance(env, AgentsEnv)
    assert env.agents == ("a", "b")
    assert isinstance(env_maker(Aec).make(EnvContext()), AgentsEnv)


class Single(gymnasium.Env):
    """One environment whose answers are made up."""

    observation_space, action_space = BOX, spaces.Discrete(2)
    agents = ("me",)

    def __init__(self, obs: Any = None, reward: Any = 1.0) -> None:
        self.obs, self.reward = np.zeros(3, np.float32) if obs is None else obs, reward

    def reset(self, *, seed=None, options=None):
        return self.obs, {}

    def step(self, action):
        return self.obs, self.reward, False, False, {}


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            Single(reward={"a": 1.0, "b": 2.0}),
            r"step\(\) gave 2 rewards \(dict\): it has several agents, or is a batch",
        ),
        (Single(reward=[1.0, 2.0, 3.0]), r"step\(\) gave 3 rewards \(list\)"),
        (Single(reward=np.zeros(4)), r"step\(\) gave 4 rewards \(an array of shape \(4,\)"),
        (Single({"a": 1, "b": 2}), r"reset\(\) gives a dict of a, b, its space is Box.*if these are agents"),
        (
            Single(np.zeros((4, 3))),
            r"has shape \(4, 3\), its space says \(3,\); if it is a batch of environments, name",
        ),
    ],
)
def test_first_steps_show_several_agents_and_batches(env: Single, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        check_first_steps(lambda: env)
    assert not check_first_steps(Single).warnings


class Free:
    """All of Gymnasium's interface, and nobody's class."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.steps = 0
        return self.rng.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, self.steps == 6, False, {}


def test_a_class_of_ones_own_with_the_new_interface_is_no_old_gym(caplog: pytest.LogCaptureFixture) -> None:
    notice_once.cache_clear()
    config = {"train_batch_size": 48, "num_envs_per_worker": 2}
    with shoal.PPO(env=Free, config=config) as trainer:
        result = trainer.train()
    assert result["episode_len_mean"] == 6
    assert not caplog.messages

    class NoSeed(Free):
        def reset(self):
            return super().reset()

    LegacyGymEnv(NoSeed()).reset(seed=1)
    assert [message.partition(",")[0] for message in caplog.messages] == ["NoSeed.reset() takes no seed"]
    caplog.clear()

    class FourValues(Free):
        def step(self, action):
            obs, reward, terminated, _, info = super().step(action)
            return obs, reward, terminated, info

    env = LegacyGymEnv(FourValues())
    env.reset(seed=1)
    assert not caplog.messages
    assert env.step(0)[2:4] == (False, False)
    assert ["FourValues has the interface of old Gym" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("line", ["import gym", "from gym import spaces", "import gym.spaces"])
def test_old_gym_that_is_not_installed(tmp_path, monkeypatch, line: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gym", None)
    (tmp_path / "old_style.py").write_text(f"import os\n{line}\n\nclass MyEnv:\n    pass\n")
    hint = r"; old Gym is not installed: write `import gymnasium as gym` there, or type pip install gym"
    for source in ("old_style.py:MyEnv", "old_style:MyEnv"):
        with pytest.raises(EnvError, match=rf"old_style\.py:2\){hint}"):
            env_maker(source, UserCode.at(tmp_path))
    with pytest.raises(EnvError, match=hint):
        env_maker(lambda config: __import__("gym")).make(EnvContext())


def test_a_gymnasium_env_that_hands_on_the_attributes_of_another_is_one() -> None:
    """As shimmy's around dm_env does."""

    class Spec:
        def observation_spec(self):
            return None

        def action_spec(self):
            return None

    class Handing(gymnasium.Env):
        observation_space, action_space = BOX, spaces.Discrete(2)

        def __getattr__(self, name):
            return getattr(Spec(), name)

        def reset(self, *, seed=None, options=None):
            return np.zeros(3, np.float32), {}

    assert isinstance(env_maker(lambda config: Handing()).make(EnvContext()).unwrapped, Handing)
