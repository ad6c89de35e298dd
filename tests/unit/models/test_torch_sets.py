"""Pooled sequences and scored offers, and what a custom model sees of them and of a mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from shoal import FullyConnectedNetwork, Repeated, TorchModelV2
from shoal.config.ppo import PPOConfig
from shoal.errors import CheckpointError, ConfigError
from shoal.models.build import build_policy
from shoal.models.torch_sets import SetNet, mean_offer

BOX = spaces.Box(-1, 1, (3,))
UNITS = Repeated(spaces.Dict(place=spaces.Box(-1, 1, (2,)), kind=spaces.Discrete(3)), 5)
CROWD = spaces.Dict(me=BOX, seen=spaces.Dict(units=UNITS, camera=spaces.Box(0, 255, (8, 8, 3), np.uint8)))
OFFERS = spaces.Dict(observations=BOX, avail_actions=spaces.Box(-9, 9, (6, 2)), action_mask=spaces.MultiBinary(6))
POOLINGS = ["mean", "max", "attention"]


def policy_for(obs_space, action_space=None, **config):
    return build_policy(obs_space, action_space or spaces.Discrete(6), PPOConfig(**config))


def outputs_of(policy, *observations):
    rows = policy.obs_spec.allocate(len(observations))
    for index, obs in enumerate(observations):
        policy.obs_spec.put(obs, rows, index)
    outputs, values, _ = policy.network.forward(policy.encoder(rows))
    return outputs, values


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_order_of_items_does_not_matter_and_padding_does_not_show(pooling) -> None:
    torch.manual_seed(0)
    net = SetNet(torch.nn.Linear(2, 4), 4, pooling)
    items = torch.randn(3, 2)

    def row(chosen, length):
        part = torch.zeros(1, length, 3)
        part[0, : len(chosen), 0] = 1
        part[0, : len(chosen), 1:] = chosen
        return net(part)[0]

    whole = row(items, 5)
    assert whole.shape == (net.num_features,)
    torch.testing.assert_close(row(items[[2, 0, 1]], 5), whole)
    torch.testing.assert_close(row(items, 3)[:-1], whole[:-1])
    assert (row(items[:2], 5) != whole).any()
    assert row(items[:0], 5).tolist() == [0.0] * 5
    assert row(items, 6)[-1] == 0.5


@pytest.mark.parametrize("pooling", POOLINGS)
def test_sequences_beside_images_and_numbers(pooling) -> None:
    policy = policy_for(CROWD, model={"sequence_pooling": pooling, "sequence_hiddens": [16]})
    CROWD.seed(0)
    observations = [CROWD.sample() for _ in range(4)]
    observations[0]["seen"]["units"] = ()
    outputs, values = outputs_of(policy, *observations)
    assert outputs.shape == (4, 6)
    assert np.isfinite(values).all()
    observations[1]["seen"]["units"] = observations[1]["seen"]["units"][::-1]
    np.testing.assert_allclose(outputs_of(policy, *observations)[0], outputs, atol=1e-6)
    assert spaces.Discrete(6).contains(policy.compute_single_action(observations[0]))
    assert "items" in policy.model.summary()


def test_a_sequence_alone_is_enough_to_see() -> None:
    policy = policy_for(spaces.Sequence(spaces.Discrete(4)), model={"sequence_max_len": 3})
    assert policy.obs_spec.shapes == ((3, 2),)
    assert policy.encoder.shapes == [(3, 5)]
    policy.compute_single_action((3, 1, 2))
    with pytest.raises(ValueError, match=r"has 4 items, and model\.sequence_max_len is 3"):
        policy.compute_single_action((0, 1, 2, 3))


@pytest.mark.parametrize(
    ("obs_space", "config", "words"),
    [
        (spaces.Sequence(BOX), {}, "set model: {sequence_max_len: 32}"),
        (UNITS, {"framework": "numpy"}, "numpy cannot pool a Sequence; use torch"),
        (OFFERS, {"framework": "numpy"}, "numpy cannot score avail_actions; use torch"),
        (
            BOX,
            {"model": {"sequence_pooling": "max"}},
            "sequence_pooling: it has no effect, because no observation is a Seq",
        ),
        (BOX, {"model": {"sequence_max_len": 3}}, "sequence_max_len: it has no effect"),
        (UNITS, {"model": {"sequence_max_len": 3}}, "no observation is a Sequence that leaves its length open"),
        (spaces.Dict(OFFERS.spaces | {"avail_actions": spaces.Box(0, 1, (6,))}), {}, "call a mask action_mask"),
        (spaces.Dict(OFFERS.spaces | {"avail_actions": spaces.Box(0, 1, (5, 2))}), {}, r"of Discrete\(n\) actions"),
        (BOX, {"squash_actions": True}, "squash_actions: it has no effect, because no action is a bounded Box"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(obs_space, config, words) -> None:
    with pytest.raises(ConfigError, match=words):
        policy_for(obs_space, **config)


def test_offers_are_scored_one_by_one() -> None:
    policy = policy_for(OFFERS)
    rng = np.random.default_rng(0)
    policy.network.params[:] += 0.1 * rng.standard_normal(len(policy.network.params)).astype(np.float32)
    offers = rng.standard_normal((6, 2)).astype(np.float32)
    mask = np.array([1, 1, 0, 1, 1, 1])
    order = np.array([3, 0, 2, 5, 4, 1])
    obs = {"observations": np.ones(3), "avail_actions": offers, "action_mask": mask}
    other = {**obs, "avail_actions": offers[order], "action_mask": mask[order]}
    padded = {**obs, "avail_actions": np.where(mask[:, None], offers, 7)}
    outputs, values = outputs_of(policy, obs, other, padded)
    np.testing.assert_allclose(outputs[1], outputs[0][order], atol=1e-5)
    np.testing.assert_allclose(outputs[2], outputs[0], atol=1e-5)
    np.testing.assert_allclose(values, values[0], atol=1e-5)
    # Dot products with two numbers span a plane: six outputs have at most two degrees of freedom.
    wanted = np.linalg.lstsq(offers[mask > 0], outputs[0][mask > 0], rcond=None)[0]
    np.testing.assert_allclose(offers[mask > 0] @ wanted, outputs[0][mask > 0], atol=1e-5)


def test_offers_need_no_mask_and_nothing_beside_them() -> None:
    policy = policy_for(spaces.Dict(avail_actions=spaces.Box(-9, 9, (6, 2))))
    assert policy.compute_single_action({"avail_actions": np.ones((6, 2))}) in range(6)
    offers = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert mean_offer(offers, None).tolist() == [[2, 3]]
    assert mean_offer(offers, torch.tensor([[False, True]])).tolist() == [[3, 4]]
    assert mean_offer(offers, torch.tensor([[False, False]])).tolist() == [[0, 0]]


class Looking(TorchModelV2):
    """Shows what it sees, and masks by itself as classic models do."""

    def __init__(self, obs_space, action_space, num_outputs, model_config, name):
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        Looking.spaces = obs_space, obs_space.original_space
        self.inner = FullyConnectedNetwork(
            obs_space.original_space["observations"], action_space, num_outputs, model_config, "inner"
        )

    def forward(self, input_dict, state, seq_lens):
        Looking.seen = input_dict["obs"]
        Looking.flat = input_dict["obs_flat"]
        logits, _ = self.inner({"obs": input_dict["obs"]["observations"]})
        inf_mask = torch.clamp(torch.log(input_dict["obs"]["action_mask"]), min=torch.finfo(torch.float32).min)
        return logits + inf_mask, state

    def value_function(self):
        return self.inner.value_function()


def test_a_custom_model_sees_the_observation_as_its_space_has_it() -> None:
    space = spaces.Dict(OFFERS.spaces | {"units": UNITS, "grid": spaces.Box(-1, 1, (2, 2)), "kind": spaces.Discrete(4)})
    policy = policy_for(space, model={"custom_model": Looking})
    flat, original = Looking.spaces
    assert flat.shape == (3 + 4 + 4,)
    assert original == space
    space.seed(1)
    obs = space.sample()
    obs["action_mask"] = np.array([0, 1, 1, 0, 0, 1], np.int8)
    for _ in range(30):
        assert policy.compute_single_action(obs) in (1, 2, 5)
    seen = Looking.seen
    assert set(seen) == set(space.spaces)
    np.testing.assert_allclose(seen["observations"][0], obs["observations"])
    np.testing.assert_allclose(seen["avail_actions"][0], obs["avail_actions"])
    np.testing.assert_allclose(seen["grid"][0], obs["grid"])
    assert seen["action_mask"].tolist() == [[0, 1, 1, 0, 0, 1]]
    assert seen["kind"].tolist() == [np.eye(4)[obs["kind"]].tolist()]
    assert seen["units"].lengths.tolist() == [len(obs["units"])]
    assert (seen["units"].values.shape, seen["units"].max_len) == ((1, 5, 5), 5)
    assert Looking.flat.shape == (1, 11)
    outputs, _ = outputs_of(policy, obs)
    assert np.isfinite(outputs).all()


def test_a_state_of_other_items_is_refused() -> None:
    mine, theirs = policy_for(UNITS), policy_for(Repeated(UNITS.child_space, 7))
    with pytest.raises(CheckpointError, match="other observations"):
        mine.set_state(theirs.get_state())
