from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from shoal.config.ppo import PPOConfig
from shoal.data.state import State
from shoal.errors import CheckpointError, ConfigError
from shoal.models.build import build_policy, needs_torch
from shoal.models.mlp import MLP

BOX = spaces.Box(-1, 1, (3,))
SPACES = [
    (BOX, spaces.Discrete(3, start=4)),
    (spaces.Discrete(5), BOX),
    (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 5])),
    (spaces.MultiBinary(3), spaces.MultiBinary((2, 2))),
    (spaces.Dict(a=BOX, b=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2), BOX])),
    (spaces.Box(0, 255, (128,), np.uint8), spaces.Box(-5, 5, (2,), np.int32)),
]
each_kind = pytest.mark.parametrize(("obs_space", "action_space"), SPACES, ids=str)


def policy_for(obs_space=BOX, action_space=SPACES[0][1], **config):
    return build_policy(obs_space, action_space, PPOConfig(**config))


@each_kind
@pytest.mark.parametrize("explore", [True, False])
def test_actions_lie_in_their_space(obs_space, action_space, explore) -> None:
    policy = policy_for(obs_space, action_space)
    assert isinstance(policy.network, MLP)
    observations = [obs_space.sample() for _ in range(20)]
    for action in policy.compute_actions(observations, explore=explore):
        assert action_space.contains(action), action
    assert action_space.contains(policy.compute_single_action(observations[0], explore=explore))


@each_kind
def test_a_saved_policy_acts_the_same(obs_space, action_space) -> None:
    first, second = policy_for(obs_space, action_space), policy_for(obs_space, action_space, seed=8)
    state = first.get_state()
    second.set_state(State(json.loads(json.dumps(state.values)), state.arrays))
    observations = [obs_space.sample() for _ in range(20)]
    for mine, theirs in zip(first.compute_actions(observations), second.compute_actions(observations), strict=True):
        for one, two in zip(
            np.atleast_1d(np.array(mine, object)), np.atleast_1d(np.array(theirs, object)), strict=True
        ):
            np.testing.assert_array_equal(one, two)


def test_a_state_does_not_move_with_its_policy() -> None:
    policy = policy_for()
    state = policy.get_state()
    policy.network.params[:] = 0
    assert state.arrays["params"].any()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"obs_space": spaces.Box(-1, 1, (4,))}, "other observations"),
        ({"obs_space": spaces.Discrete(3)}, "other observations"),
        ({"obs_space": spaces.Dict(a=BOX)}, "other observations"),
        ({"action_space": spaces.Discrete(4)}, "other actions"),
        ({"action_space": spaces.MultiBinary(3)}, "other actions"),
        ({"model": {"fcnet_hiddens": [3]}}, "parameters"),
        ({"observation_filter": "MeanStdFilter"}, "observation_filter"),
    ],
    ids=str,
)
def test_a_state_of_another_policy_is_refused_and_nothing_changes(changed, words) -> None:
    policy, other = policy_for(), policy_for(**changed)
    before = policy.network.params.copy()
    with pytest.raises(CheckpointError, match=words):
        policy.set_state(other.get_state())
    np.testing.assert_array_equal(policy.network.params, before)


def test_a_filter_needs_measurements() -> None:
    with pytest.raises(ConfigError, match="nothing to filter"):
        policy_for(spaces.Discrete(3), observation_filter="MeanStdFilter")


def test_a_free_spread_does_not_depend_on_the_observation() -> None:
    free, bound = (policy_for(BOX, BOX, model={"free_log_std": free}) for free in (True, False))
    x = (np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32),)
    assert "log_std" in free.get_weights()
    assert "log_std" not in bound.get_weights()
    for policy, same in ((free, True), (bound, False)):
        policy.network.params[:] += 1
        spread = policy.network.act(x)[:, 3:]
        assert (spread == spread[0]).all() == same


def test_which_policies_need_torch() -> None:
    image = spaces.Dict(a=BOX, b=spaces.Box(0, 255, (84, 84, 3), np.uint8))
    assert needs_torch(BOX, PPOConfig()) is None
    assert needs_torch(BOX, PPOConfig(framework="torch")) == "framework: torch"
    assert needs_torch(image, PPOConfig()) == "an image observation"
    assert needs_torch(image, PPOConfig(framework="numpy")) is None
    assert needs_torch(BOX, PPOConfig(num_gpus=1)) == "num_gpus"


def test_images_are_flattened_if_numpy_is_asked_for() -> None:
    space = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    policy = policy_for(space, framework="numpy")
    assert isinstance(policy.network, MLP)
    assert policy.network.num_features == 300
    assert SPACES[0][1].contains(policy.compute_single_action(space.sample()))


def test_different_seeds_give_different_policies_and_the_same_seed_the_same() -> None:
    one, two, other = (policy_for(seed=seed).network.params for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("obs", [[np.nan, 0, 0], np.zeros(4), None, "abc"], ids=str)
def test_an_observation_that_does_not_fit_is_refused(obs) -> None:
    with pytest.raises(ValueError):
        policy_for().compute_single_action(obs)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_spread_of_continuous_actions_begins_where_it_is_asked_to(framework) -> None:
    policy = policy_for(action_space=BOX, framework=framework, model={"log_std_init": -1.5})
    np.testing.assert_allclose(policy.get_weights()["log_std"], -1.5, rtol=1e-6)
    assert not policy_for(action_space=BOX, framework=framework).get_weights()["log_std"].any()


def test_a_spread_that_nothing_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config.model.log_std_init: is the spread of continuous actions"):
        policy_for(model={"log_std_init": -1})
    for changes in ({"model": {"free_log_std": False}}, {"exploration_config": {"type": "GaussianNoise"}}):
        model = {"log_std_init": -1, **changes.get("model", {})}
        with pytest.raises(ConfigError, match=r"config.model.log_std_init"):
            PPOConfig(**{**changes, "model": model})
