"""Convolutions for any image, and custom models in the classic way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from shoal.config.model import ModelConfig
from shoal.envs.observations import ObsSpec
from shoal.errors import ConfigError
from shoal.models.catalog import ModelCatalog
from shoal.models.encoder import Encoder
from shoal.models.torch_build import build_torch_network
from shoal.models.torch_models import (
    FullyConnectedNetwork,
    TorchModelV2,
    channels_first,
    classic_convolutions,
    default_convolutions,
    image_sides,
)

NONE = np.zeros(0, np.int64)
RATIO_OBS = spaces.MultiDiscrete([4, 49, 49, 49, 49])


def build(obs_space, num_outputs=2, **model):
    encoder = Encoder(ObsSpec(obs_space))
    return build_torch_network(encoder, num_outputs, NONE, ModelConfig(**model), spaces.Discrete(num_outputs), 0)


def build_custom(model_class, **config):
    return build(spaces.Box(-1, 1, (4,)), custom_model=model_class, custom_model_config=config)


@pytest.mark.parametrize(
    "shape",
    [
        *((side, side, 3) for side in (8, 9, 10, 13, 15, 16, 17, 31, 63, 64, 65, 84, 96, 127, 200)),
        (3, 40, 30),
        (4, 84, 84),
        (1, 28, 28),
        (12, 84, 84),
        (210, 160, 3),
        (8, 8, 111),
        (8, 200, 1),
        (16, 16),
        (33, 120),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_of_any_size(shape, dtype):
    network = build(spaces.Box(0, 255, shape, dtype))
    image = np.random.default_rng(0).random((2, *shape)).astype(np.float32)
    if dtype == np.uint8:
        image = (255 * image).astype(np.uint8)
    outputs, values, tape = network.forward((image,))
    assert outputs.shape == (2, 2)
    assert values.shape == (2,)
    assert network.vjp(tape, np.ones_like(outputs), np.ones_like(values)).any()


@pytest.mark.parametrize("height", [8, 11, 64, 84, 500, 1024])
@pytest.mark.parametrize("width", [8, 15, 84, 1024])
def test_default_convolutions_fit_and_end_small(height, width):
    sides = [height, width]
    for layer in default_convolutions(height, width):
        assert layer.kernel[0] <= sides[0]
        assert layer.kernel[1] <= sides[1]
        sides = [layer.side(axis, side) for axis, side in enumerate(sides)]
    assert min(sides) >= 1
    assert max(sides) <= 12


def test_the_nature_network_is_the_default_for_its_own_images():
    plan = [(layer.channels, layer.kernel[0], layer.stride[0]) for layer in default_convolutions(84, 84)]
    assert plan == [(32, 8, 4), (64, 4, 2), (64, 3, 1)]


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((84, 84, 3), (3, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((12, 84, 84), (12, 84, 84)),
        ((8, 8, 111), (111, 8, 8)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 210, 160), (3, 210, 160)),
        ((10, 40, 60), (10, 40, 60)),
        ((30, 30, 30), (30, 30, 30)),
        ((20, 30), (1, 20, 30)),
    ],
)
def test_where_the_channels_are(shape, sides):
    assert image_sides(shape) == sides


def test_channel_order_does_not_change_what_is_seen():
    assert channels_first((3, 20, 24))
    last = build(spaces.Box(0, 255, (20, 24, 3), np.uint8))
    first = build(spaces.Box(0, 255, (3, 20, 24), np.uint8))
    np.testing.assert_array_equal(last.params, first.params)
    image = np.random.default_rng(0).integers(0, 256, (2, 20, 24, 3), np.uint8)
    np.testing.assert_allclose(last.act((image,)), first.act((image.transpose(0, 3, 1, 2),)), atol=1e-6)


def test_bytes_are_scaled_and_floats_are_not():
    of_bytes, of_floats = (build(spaces.Box(0, 255, (16, 16, 1), dtype)) for dtype in (np.uint8, np.float32))
    image = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 1), np.uint8)
    scaled = image.astype(np.float32) / 255
    np.testing.assert_allclose(of_bytes.act((image,)), of_floats.act((scaled,)), atol=1e-6)


def test_classic_filters_reach_one_by_one():
    filters = [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]]
    sides = [84, 84]
    for layer in classic_convolutions(filters, 84, 84):
        sides = [layer.side(axis, side) for axis, side in enumerate(sides)]
    assert sides == [1, 1]
    network = build(spaces.Box(0, 255, (84, 84, 4), np.uint8), conv_filters=filters)
    assert "[B, 256, 1, 1]" in network.summary()
    assert "[B, 16, 21, 21]" in network.summary()


def test_filters_may_tell_their_padding():
    image = spaces.Box(0, 255, (20, 20, 1), np.uint8)
    assert "[B, 4, 10, 10]" in build(image, conv_filters=[[4, 5, 2, "same"]]).summary()
    network = build(image, conv_filters=[[4, 5, 2, "valid"], [8, 3, 1, "same"]])
    assert "[B, 4, 8, 8]" in network.summary()
    assert "[B, 8, 8, 8]" in network.summary()


def test_filters_that_do_not_fit_are_explained():
    with pytest.raises(
        ConfigError, match=r"layer 2 has a kernel of 11 x 11, larger than its map \(40 x 30 -> 10 x 8\)"
    ):
        build(spaces.Box(0, 255, (40, 30, 3)), conv_filters=[[16, 8, 4], [32, 11, 1]])


def test_images_beside_numbers():
    near, far = spaces.Box(0, 255, (16, 16), np.uint8), spaces.Box(0, 255, (3, 20, 20), np.uint8)
    network = build(spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=near, c=far), post_fcnet_hiddens=[])
    rng = np.random.default_rng(0)
    inputs = (
        rng.random((2, 3), np.float32),
        rng.integers(0, 256, (2, 16, 16), np.uint8),
        rng.integers(0, 256, (2, 3, 20, 20), np.uint8),
    )
    before = network.act(inputs).copy()
    for part in inputs:
        part[:] = 0
        assert (network.act(inputs) != before).any()
        before = network.act(inputs).copy()


# The seed's model as it stands there, with torch's parent for TensorFlow's.
TFModelV2 = TorchModelV2


class CustomModel(TFModelV2):
    """Example of a custom model that just delegates to a fc-net."""

    def __init__(self, obs_space, action_space, num_outputs, model_config,
         name):  # fmt: skip
        super(CustomModel, self).__init__(obs_space, action_space, num_outputs,  # noqa: UP008
                          model_config, name)  # fmt: skip
        self.model = FullyConnectedNetwork(obs_space, action_space,
                           num_outputs, model_config, name)  # fmt: skip
        self.register_variables(self.model.variables())

    def forward(self, input_dict, state, seq_lens):
        return self.model.forward(input_dict, state, seq_lens)

    def value_function(self):
        return self.model.value_function()


def test_the_seeds_model_runs_by_its_registered_name():
    ModelCatalog.register_custom_model("my_model", CustomModel)
    network = build(RATIO_OBS, num_outputs=49, custom_model="my_model")
    outputs, values, tape = network.forward((np.eye(5, 200, dtype=np.float32),))
    assert outputs.shape == (5, 49)
    assert network.vjp(tape, np.ones_like(outputs), np.ones_like(values)).any()


def idiom(order, bases):
    def initialise(self, obs_space, action_space, num_outputs, model_config, name):
        steps = {
            "classic": lambda: TorchModelV2.__init__(self, obs_space, action_space, num_outputs, model_config, name),
            "module": lambda: nn.Module.__init__(self),
        }
        for step in order:
            steps[step]()
        self.sub_model = FullyConnectedNetwork(obs_space, action_space, num_outputs, model_config, name)

    def forward(self, input_dict, state, seq_lens):
        input_dict["obs"] = input_dict["obs"].float()
        outputs, _ = self.sub_model(input_dict, state, seq_lens)
        return outputs, []

    def value_function(self):
        return torch.reshape(self.sub_model.value_function(), [-1])

    return type(TorchModelV2)(
        "Idiom", bases, {"__init__": initialise, "forward": forward, "value_function": value_function}
    )


@pytest.mark.parametrize("order", [("classic", "module"), ("module", "classic"), ("classic",)])
@pytest.mark.parametrize("bases", [(TorchModelV2, nn.Module), (nn.Module, TorchModelV2), (TorchModelV2,)])
def test_every_way_to_inherit_works(order, bases):
    network = build_custom(idiom(order, bases))
    assert len(network.params) == 2 * (5 * 64 + 65 * 64) + 65 * 3


class Linear(TorchModelV2):
    """A small model that tests derive from."""

    def __init__(self, *args):
        super().__init__(*args)
        self.policy, self.value = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, input_dict, state, seq_lens):
        self.seen = input_dict["obs_flat"]
        return self.policy(self.seen), state

    def value_function(self):
        return self.value(self.seen).squeeze(1)


class TwoMany(Linear):
    def forward(self, input_dict, state, seq_lens):
        outputs, _ = super().forward(input_dict, state, seq_lens)
        return torch.cat([outputs, outputs], 1), state


class Column(Linear):
    def value_function(self):
        return self.value(self.seen)


class OutputsAlone(Linear):
    def forward(self, input_dict, state, seq_lens):
        return super().forward(input_dict, state, seq_lens)[0]


class NoValue(TorchModelV2):
    forward = Linear.forward

    def __init__(self, *args):
        super().__init__(*args)
        self.policy = nn.Linear(4, 2)


class NoForward(Linear):
    forward = TorchModelV2.forward


class NotANumber(Linear):
    def forward(self, input_dict, state, seq_lens):
        outputs, _ = super().forward(input_dict, state, seq_lens)
        return torch.log(-outputs.abs()), state


class Misfit(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.policy = nn.Linear(5, 2)


class Breaking(Linear):
    def __init__(self, *args):
        raise KeyError("layers")


class Double(Linear):
    def forward(self, input_dict, state, seq_lens):
        return super().forward(input_dict, state, seq_lens)[0].double(), state


class Dropping(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.policy = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))


class Noisy(Linear):
    def forward(self, input_dict, state, seq_lens):
        outputs, _ = super().forward(input_dict, state, seq_lens)
        return outputs + torch.randn_like(outputs), state


class Counting(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, input_dict, state, seq_lens):
        self.calls += 1
        return super().forward(input_dict, state, seq_lens)


class Mixing(Linear):
    def forward(self, input_dict, state, seq_lens):
        outputs, _ = super().forward(input_dict, state, seq_lens)
        return outputs - outputs.mean(0), state


class Normalising(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.policy = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


class InPlace(Linear):
    def forward(self, input_dict, state, seq_lens):
        input_dict["obs"].mul_(2)
        return super().forward(input_dict, state, seq_lens)


class OwnLoss(Linear):
    def custom_loss(self, policy_loss, loss_inputs):
        return policy_loss


class Unregistered(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_variables(nn.Linear(2, 2).parameters())


@pytest.mark.parametrize(
    ("model_class", "message"),
    [
        (TwoMany, r"TwoMany: expected outputs \[B, 2\], got \[B, 4\]"),
        (Column, r"Column: expected values \[B\], got \[B, 1\]"),
        (Double, "Double: expected outputs in float32, got float64"),
        (OutputsAlone, r"OutputsAlone.forward must return \(outputs, state\)"),
        (NoValue, r"^custom model NoValue: write value_function\(self\), which returns the values \[B\] .*last$"),
        (NoForward, r"^custom model NoForward: write forward\(self, input_dict, state, seq_lens\), which returns"),
        (NotANumber, r"NotANumber: outputs of plain observations are not finite"),
        (
            Misfit,
            r"Misfit fails on 3 observations: RuntimeError.*shapes cannot be multiplied.*test_torch_models.py:\d+",
        ),
        (Breaking, "Breaking cannot be made: KeyError: 'layers'"),
        (Dropping, r"Dropping is random in model.policy.1 \(Dropout\)"),
        (Noisy, "Noisy is random"),
        (Counting, "Counting keeps statistics in buffers"),
        (Mixing, "Mixing mixes observations of a batch"),
        (Normalising, "custom model Normalising"),
        (InPlace, "InPlace changes its observations in place"),
        (OwnLoss, "custom_loss is not supported"),
        (Unregistered, "some are no parameters of the model"),
        (nn.Linear, r"write class Linear\(TorchModelV2\)"),
    ],
)
def test_wrong_models_are_named(model_class, message):
    with pytest.raises(ConfigError, match=message):
        build_custom(model_class)


class Configured(Linear):
    def __init__(self, obs_space, action_space, num_outputs, model_config, name, width, **others):
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        Configured.told = (width, others, model_config, obs_space)


def test_custom_model_config_arrives_both_ways():
    build_custom(Configured, width=3, depth=2)
    width, others, model_config, obs_space = Configured.told
    assert (width, others) == (3, {"depth": 2})
    assert model_config["custom_model_config"] == {"width": 3, "depth": 2}
    assert model_config["fcnet_hiddens"] == (64, 64)
    assert obs_space.shape == (4,)
    assert obs_space.original_space == spaces.Box(-1, 1, (4,))


class Looking(TorchModelV2):
    """Sees what the input dict holds."""

    def __init__(self, *args):
        super().__init__(*args)
        self.fc = FullyConnectedNetwork(*args)

    def forward(self, input_dict, state, seq_lens):
        Looking.told = dict(input_dict)
        assert "obs_flat" in input_dict
        return self.fc.forward(input_dict, state, seq_lens)

    def value_function(self):
        return self.fc.value_function()


def test_custom_models_see_images():
    shape = (16, 20, 3)
    build(spaces.Box(0, 255, shape, np.uint8), custom_model=Looking)
    assert Looking.told["obs"].shape[1:] == shape
    assert Looking.told["obs"].dtype == torch.uint8
    assert "obs_flat" not in Looking.told  # made when asked for
    both = spaces.Dict(camera=spaces.Box(0, 255, shape, np.uint8), speed=spaces.Box(-1, 1, (2,)))
    network = build(both, custom_model=Looking)
    shapes = {name: tuple(seen.shape[1:]) for name, seen in Looking.told["obs"].items()}
    assert shapes == {"camera": shape, "speed": (2,)}
    assert network.named_params()["model.fc.net.policy.hidden0.weight"].shape == (64, 2 + 16 * 20 * 3)


class Lazy(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.policy = nn.LazyLinear(2)


class Constant(Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.policy = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))

    def value_function(self):
        return torch.zeros(len(self.seen))


@pytest.mark.parametrize("model_class", [Lazy, Constant])
def test_lazy_layers_constant_buffers_and_values_without_parameters_are_welcome(model_class):
    network = build_custom(model_class)
    outputs, values, tape = network.forward((np.ones((5, 4), np.float32),))
    assert network.jvp(tape, np.ones_like(network.params)).any()
    assert network.vjp(tape, np.ones_like(outputs), np.ones_like(values)).any()
