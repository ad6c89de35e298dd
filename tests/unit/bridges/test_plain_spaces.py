"""Any spaces as the plain ones that RLlib takes, and our environments as it steps them; RLlib is not needed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from shoal.bridges.plain_spaces import PlainForm
from shoal.bridges.runner_envs import CrashReporter, RunnerDesk, RunnerEnv, RunnerPlan
from shoal.config.experiment import algorithm_config
from shoal.config.rllib import RLlibConfig
from shoal.envs.making import maker_of
from shoal.errors import ConfigError


def form(observation: Any, action: Any, **keys: Any) -> PlainForm:
    return PlainForm(observation, action, algorithm_config("rllib:PPO", {"env": "CartPole-v1", **keys}))


NUMBER = spaces.Box(-1, 1, (2,))
OBSERVATIONS = {
    "discrete": (spaces.Discrete(4), (4,)),
    "multi-discrete": (spaces.MultiDiscrete([2, 3]), (5,)),
    "binary": (spaces.MultiBinary(3), (3,)),
    "dict": (spaces.Dict({"a": spaces.Discrete(3), "b": NUMBER}), (5,)),
    "tuple of an image and numbers": (spaces.Tuple((spaces.Box(0, 255, (16, 16, 3), np.uint8), NUMBER)), (770,)),
    "image": (spaces.Box(0, 255, (16, 20, 3), np.uint8), (16, 20, 3)),
    "channels first": (spaces.Box(0, 255, (3, 16, 20), np.uint8), (16, 20, 3)),
    "field": (spaces.Box(-1, 1, (32, 32)), (32, 32, 1)),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_observation_becomes_numbers_or_one_image(name: str) -> None:
    space, shape = OBSERVATIONS[name]
    plain = form(space, spaces.Discrete(2))
    assert plain.observation_space.shape == shape
    space.seed(0)
    rows = plain.obs_spec.allocate(2)
    for index in range(2):
        plain.obs_spec.put(space.sample(), rows, index)
    seen = plain.seen(rows)
    assert seen.shape == (2, *shape)
    assert seen.dtype == np.float32
    assert np.abs(seen).max() <= 255 if name.startswith("tuple") else np.abs(seen).max() <= 1


ACTIONS = {
    "choice": (spaces.Discrete(3, start=5), spaces.Discrete(3)),
    "choices": (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3])),
    "bits": (spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2])),
    "bounded": (spaces.Box(0, 10, (2,)), spaces.Box(-1, 1, (2,))),
    "unbounded": (spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-np.inf, np.inf, (2,))),
    "both": (
        spaces.Dict({"gear": spaces.Discrete(4), "valve": spaces.Box(0, 1, (1,))}),
        spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (1,)))),
    ),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_comes_back_as_one_of_the_environment(name: str) -> None:
    space, plain_space = ACTIONS[name]
    plain = form(NUMBER, space)
    assert plain.action_space == plain_space
    plain_space.seed(0)
    for _ in range(10):
        action = plain_space.sample()
        batch = tuple(np.asarray(part)[None] for part in action) if isinstance(action, tuple) else np.asarray([action])
        (decoded,) = plain.action_spec.decode(plain.rows(batch))
        assert space.contains(decoded), decoded


def test_bounds_are_scaled_and_unscaled() -> None:
    plain = form(NUMBER, spaces.Box(0, 10, (1,)))
    assert plain.action_spec.decode(plain.rows(np.array([[0.5]])))[0] == pytest.approx([7.5])
    as_it_is = form(NUMBER, spaces.Box(0, 10, (1,)), normalize_actions=False)
    assert as_it_is.action_space == spaces.Box(0, 10, (1,))


def test_masks_are_refused() -> None:
    masked = spaces.Dict({"observations": NUMBER, "action_mask": spaces.MultiBinary(2)})
    with pytest.raises(ConfigError, match="action_mask"):
        form(masked, spaces.Discrete(2))


class Answers:
    """Stands for the desk's actor: the call is made at once."""

    def __init__(self) -> None:
        self.desk = RunnerDesk(b"")
        self.tell = self

    def remote(self, *told: Any) -> None:
        self.desk.tell(*told)


class Counting(gym.Env[Any, Any]):
    """Ends after three steps, or fails at the second if its config says so."""

    observation_space, action_space = spaces.Discrete(10), spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.config = config

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.config.get("fails_at"):
            raise RuntimeError("diverged")
        how = self.config.get("ends", "terminated")
        return self.count, 1.0, how == "terminated" and self.count == 3, how == "truncated" and self.count == 3, {}


def runner(**keys: Any) -> tuple[RunnerEnv, RunnerDesk]:
    config = algorithm_config("rllib:PPO", {"env": Counting, **keys})
    assert isinstance(config, RLlibConfig)
    answers = Answers()
    plan = RunnerPlan(config, maker_of(config), Counting.observation_space, Counting.action_space)
    return RunnerEnv(plan, answers, 1, 0), answers.desk


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episodes_follow_each_other_and_are_told(end: str) -> None:
    env, desk = runner(env_config={"ends": end})
    for _ in range(2):
        obs, _ = env.reset(seed=1)
        assert obs.argmax() == 0
        steps = [env.step(1) for _ in range(3)]
        assert [step[1] for step in steps] == [1.0, 1.0, 1.0]
        assert [step[2 if end == "terminated" else 3] for step in steps] == [False, False, True]
        if end == "truncated":
            assert steps[-1][0].argmax() == 3, "the last observation, which values are bootstrapped from"
    assert [episode.reward for episode in desk.take().episodes] == [3.0, 3.0]
    assert desk.take().episodes == []
    env.close()


def test_a_failing_environment_never_raises_and_its_cause_is_told() -> None:
    env, desk = runner(env_config={"fails_at": 2}, max_env_failures=3)
    ends = 0
    for _ in range(20):
        env.reset()
        for _ in range(3):
            _, reward, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                assert truncated
                assert reward == 0
                ends += 1
                break
    report = desk.take()
    assert "RuntimeError: diverged" in report.end
    assert "max_env_failures is 3" in report.end
    assert len(report.incidents) == 4
    assert ends == 20, "it goes on to end episodes until somebody reads of it"
    env.close()


def test_what_rllib_only_logs_before_it_ends_a_runner_is_told() -> None:
    answers = Answers()
    logger = logging.Logger("ray.rllib.of.a.test")
    logger.addHandler(CrashReporter(answers))
    logger.error("no exception")
    assert answers.desk.take().crash == ""
    try:
        raise ModuleNotFoundError("No module named 'msgpack_numpy'")
    except ModuleNotFoundError:
        logger.exception("Worker exception caught during `apply()`")
    assert answers.desk.take().crash == "ModuleNotFoundError: No module named 'msgpack_numpy'"


def test_an_environment_that_cannot_be_made_is_told() -> None:
    env, desk = runner()

    def broken(ctx: Any) -> Any:
        raise OSError("no licence")

    env._plan = replace(env._plan, maker=replace(env._plan.maker, create=broken))
    env.reset()
    assert env.step(0)[3]
    assert "no licence" in desk.take().end
