"""The PyTorch modules that come with shoal, and the classic way to write one's own.

- `MLPNet`: the same layers as the NumPy MLP, for one feature vector.
- `JoinedNet`: images, sequences and actions on offer, joined with the feature vector.
- `TorchModelV2` and `FullyConnectedNetwork`: custom models with classic RLlib's signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any

import gymnasium
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.config.model import ModelConfig
from shoal.envs.observations import Kind
from shoal.envs.spaces import Space, channels_first, image_sides
from shoal.errors import ConfigError
from shoal.models.convolutions import classic_convolutions, default_convolutions
from shoal.models.torch_inputs import ObsView, flat
from shoal.models.torch_network import Tensors
from shoal.models.torch_sets import SetNet, mean_offer, scores

# In place wherever the derivative needs only the result: a layer's own output is nobody else's.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": partial(F.elu, inplace=True),
    "silu": F.silu,
    "sigmoid": torch.sigmoid_,
    "leaky_relu": partial(F.leaky_relu, inplace=True),
    "gelu": partial(F.gelu, approximate="tanh"),
    "softplus": F.softplus,
}
JOINED_KINDS = {"image", "items", "avail"}  # what takes more than the feature vector


class Dense(nn.Module):
    """Fully connected layers, each followed by the activation, and then a linear head if `num_outputs` is given."""

    def __init__(
        self, num_inputs: int, hiddens: Sequence[int], activation: str, num_outputs: int | None = None, gain: float = 1
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self._hidden = []
        for index, size in enumerate(hiddens):
            layer = orthogonal(nn.Linear(num_inputs, size), sqrt(2))
            self.add_module(f"hidden{index}", layer)
            self._hidden.append(layer)
            num_inputs = size
        self.num_features = num_inputs
        self.head = None
        if num_outputs is not None:
            self.head = orthogonal(nn.Linear(num_inputs, num_outputs), gain)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[B, O]` of features `[B, D]`."""
        # The layers' own `__call__` would cost a tenth of a small network's time.
        for layer in self._hidden:
            x = self.activation(F.linear(x, layer.weight, layer.bias))
        if self.head is None:
            return x
        return F.linear(x, self.head.weight, self.head.bias)


class MLPNet(nn.Module):
    """A policy net and a value net over one feature vector, apart or on shared hidden layers."""

    def __init__(
        self, num_features: int, num_outputs: int, hiddens: Sequence[int], activation: str, share_layers: bool
    ) -> None:
        super().__init__()
        self.shared = None
        if share_layers:
            self.shared = Dense(num_features, hiddens, activation)
            num_features, hiddens = self.shared.num_features, ()
        self.policy = Dense(num_features, hiddens, activation, num_outputs, gain=0.01)
        self.value = Dense(num_features, hiddens, activation, 1)

    def forward(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Outputs `[B, K]` and values `[B]` of features `[B, D]`."""
        x = self.features(inputs)
        return self.policy.forward(x), self.value.forward(x).squeeze(1)

    def act(self, inputs: Tensors) -> Tensor:
        """Outputs alone."""
        return self.policy.forward(self.features(inputs))

    def values(self, inputs: Tensors) -> Tensor:
        """Values alone."""
        return self.value.forward(self.features(inputs)).squeeze(1)

    def features(self, inputs: Tensors) -> Tensor:
        """What both heads see `[B, D]`."""
        if self.shared is None:
            return inputs[0]
        return self.shared.forward(inputs[0])


class ImageNet(nn.Module):
    """The convolutions over one image; gives one flat row of features per image."""

    def __init__(self, shape: tuple[int, ...], filters: Sequence[Sequence[Any]] | None, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.rank, self.channels_first = len(shape), len(shape) == 3 and channels_first(shape)
        channels, height, width = image_sides(shape)
        if filters is None:
            plan = default_convolutions(height, width)
        else:
            plan = classic_convolutions(filters, height, width)
        self._layers: list[tuple[tuple[int, ...] | None, nn.Module]] = []
        for index, layer in enumerate(plan):
            conv = orthogonal(nn.Conv2d(channels, layer.channels, layer.kernel, layer.stride), sqrt(2))
            self.add_module(f"conv{index}", conv)
            self._layers.append((layer.padding if any(layer.padding) else None, conv))
            channels = layer.channels
            height, width = layer.map_of(height, width)
        self.num_features = channels * height * width

    def forward(self, image: Tensor) -> Tensor:
        """Features `[B, D]` of images `[B, ...]`; bytes are scaled to [0, 1], floats are taken as they are."""
        x = image
        if self.rank == 2:
            x = x.unsqueeze(1)
        elif not self.channels_first:
            x = x.permute(0, 3, 1, 2)
        # With its channels side by side, the first layer's gradient takes a third of the time. They are put so while
        # they are bytes, which is the quarter of the work; an image with its channels last lies so already.
        x = x.contiguous(memory_format=torch.channels_last).float()
        if image.dtype == torch.uint8:
            x.mul_(1 / 255)  # already a copy
        for padding, conv in self._layers:
            if padding is not None:
                x = F.pad(x, padding)
            x = self.activation(conv(x))
        return x.flatten(1)


class JoinedFeatures(nn.Module):
    """What each part of an observation becomes, side by side in one row: convolutions over images, pooled sequences.

    Where actions are on offer (`avail_actions`), what a policy puts out is what it wants of an action (`num_wanted`
    numbers), and its outputs are the dot products of that with each of them.
    """

    def __init__(
        self, parts: Sequence[tuple[Kind, tuple[int, ...]]], num_outputs: int, activation: str, model: ModelConfig
    ) -> None:
        super().__init__()
        places = {kind: place for place, (kind, _) in enumerate(parts)}
        self._has_vector, self._masked, self._avail = "vector" in places, "mask" in places, places.get("avail")
        self._nets: list[tuple[int, nn.Module]] = []
        self.num_features = parts[0][1][0] if self._has_vector else 0
        for place, (kind, shape) in enumerate(parts):
            net: ImageNet | SetNet
            if kind == "image":
                net = ImageNet(shape, model.conv_filters, model.conv_activation)
            elif kind == "items":
                layers = Dense(shape[1] - 1, model.sequence_hiddens, activation)
                net = SetNet(layers, layers.num_features, model.sequence_pooling)
            else:
                continue
            self.add_module(f"{kind}{place - self._has_vector}", net)
            self._nets.append((place, net))
            self.num_features += net.num_features
        self.num_wanted = num_outputs
        if self._avail is not None:
            self.num_wanted = parts[self._avail][1][1]
            self.num_features += self.num_wanted

    def features(self, inputs: Tensors) -> Tensors:
        """Everything that is seen, as one row `[B, D]` per observation."""
        seen = []
        if self._has_vector:
            seen.append(inputs[0])
        for place, net in self._nets:
            seen.append(net(inputs[place]))
        if self._avail is not None:
            mask = inputs[-1] if self._masked else None
            seen.append(mean_offer(inputs[self._avail], mask))
        if len(seen) == 1:
            return (seen[0],)
        return (torch.cat(seen, dim=1),)

    def scored(self, inputs: Tensors, wanted: Tensor) -> Tensor:
        """The outputs `[B, K]` that follow from what the policy put out."""
        if self._avail is None:
            return wanted
        return scores(inputs[self._avail], wanted)


class JoinedNet(JoinedFeatures):
    """What is seen of each part of an observation, then dense layers and two heads.

    Policy and value always share the convolutions over an image, as PPO with the Nature network does, and the pooling
    of a sequence; `vf_share_layers` says whether they share the dense layers after them too.
    """

    def __init__(self, parts: Sequence[tuple[Kind, tuple[int, ...]]], num_outputs: int, model: ModelConfig) -> None:
        hiddens, activation = dense_layers([kind for kind, _ in parts], model)
        super().__init__(parts, num_outputs, activation, model)
        self.dense = MLPNet(self.num_features, self.num_wanted, hiddens, activation, model.vf_share_layers)

    def forward(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Outputs `[B, K]` and values `[B]`."""
        outputs, values = self.dense.forward(self.features(inputs))
        return self.scored(inputs, outputs), values

    def act(self, inputs: Tensors) -> Tensor:
        """Outputs alone."""
        return self.scored(inputs, self.dense.act(self.features(inputs)))

    def values(self, inputs: Tensors) -> Tensor:
        """Values alone."""
        return self.dense.values(self.features(inputs))


def dense_layers(kinds: Sequence[Kind], model: ModelConfig) -> tuple[Sequence[int], str]:
    """Widths and activation of the dense layers: those of `post_fcnet_hiddens` (None: [256]) where an image is seen."""
    if "image" not in kinds:
        return model.fcnet_hiddens, model.fcnet_activation
    if model.post_fcnet_hiddens is None:
        return (256,), model.conv_activation
    return model.post_fcnet_hiddens, model.conv_activation


class _ModelType(type):
    """Makes every subclass of `TorchModelV2` a torch module, whether it says so (in either order) or not."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _ModelType:
        if bases and bases != (object,) and not any(issubclass(parent, nn.Module) for parent in bases):
            bases = (*bases, nn.Module)
        return super().__new__(cls, name, bases, namespace)


if TYPE_CHECKING:
    _Module = nn.Module
else:
    _Module = object


class TorchModelV2(_Module, metaclass=_ModelType):
    """The parent of custom models, with classic RLlib's signature.

    `forward(input_dict, state, seq_lens)` returns `(outputs [B, num_outputs], state)`; `value_function()` then returns
    the values `[B]` of the same observations. `input_dict["obs"]` is the encoded observation: of a Dict or Tuple space
    a dict or tuple of tensors, choices one-hot `[B, n]`, images in their own shape and dtype, an `action_mask` as
    floats, a sequence as `RepeatedValues`; of any other space one tensor, `[B, D]` unless it is an image.
    `input_dict["obs_flat"]` is one row of all numbers and images, without masks, offers and sequences. `obs_space` is
    the space of that row, with the environment's as its `original_space`; that of an image alone is the image's own.

    A model has memory if `get_initial_state()` says in which state an episode begins: a list of arrays. Then the rows
    are those of sequences, `B = len(seq_lens) * T` of them with T the longest, and `state` is where each began, each
    part `[len(seq_lens), ...]`. Rows past a sequence's end are zeros, and what becomes of them is ignored. With
    `lstm_use_prev_action` and `lstm_use_prev_reward` there are `input_dict["prev_actions"]` (choices are one-hot) and
    `input_dict["prev_rewards"]` `[B]`.
    """

    def __init__(
        self, obs_space: Space, action_space: Space, num_outputs: int, model_config: Mapping[str, Any], name: str
    ) -> None:
        # `TorchModelV2.__init__(...); nn.Module.__init__(self)`, the other order and `super().__init__(...)` all work.
        if "_parameters" not in self.__dict__:
            nn.Module.__init__(self)
        self.obs_space, self.action_space = obs_space, action_space
        self.num_outputs, self.model_config, self.name = num_outputs, model_config, name

    def forward(self, input_dict: Mapping[str, Any], state: list[Tensor], seq_lens: Any) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[B, num_outputs]` and the state, for a batch of observations."""
        del input_dict, state, seq_lens
        raise self._unwritten("forward(self, input_dict, state, seq_lens)", "outputs [B, num_outputs] and the state")

    def value_function(self) -> Tensor:
        """Values `[B]` of the observations that `forward` saw last."""
        raise self._unwritten("value_function(self)", "the values [B] of the observations that forward saw last")

    def get_initial_state(self) -> list[Any]:
        """The state in which an episode begins, without a batch axis; none here: no memory."""
        return []

    def _unwritten(self, method: str, returns: str) -> ConfigError:
        """What to say of a method that a model must have and has not."""
        return ConfigError(f"custom model {type(self).__name__}: write {method}, which returns {returns}")

    def variables(self) -> list[Tensor]:
        """All parameters."""
        return list(self.parameters())

    def register_variables(self, variables: Sequence[Tensor]) -> None:
        """Check that these are parameters of this model, as attributes that are layers make them by themselves."""
        known = {id(parameter) for parameter in self.parameters()}
        if any(id(variable) not in known for variable in variables):
            raise ConfigError(
                f"{type(self).__name__}.register_variables: some are no parameters of the model; "
                "make the layers that own them attributes of it first"
            )


class FullyConnectedNetwork(TorchModelV2):
    """The built-in network of `fcnet_hiddens`, to delegate to from a custom model."""

    def __init__(
        self, obs_space: Space, action_space: Space, num_outputs: int, model_config: Mapping[str, Any], name: str
    ) -> None:
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.net = MLPNet(
            gymnasium.spaces.flatdim(obs_space),
            num_outputs,
            model_config["fcnet_hiddens"],
            model_config["fcnet_activation"],
            model_config["vf_share_layers"],
        )
        self._seen: Tensor | None = None

    def forward(
        self, input_dict: Mapping[str, Any], state: list[Tensor] | None = None, seq_lens: Any = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[B, num_outputs]`; the value net waits for `value_function`."""
        del seq_lens
        if "obs_flat" in input_dict:
            row = input_dict["obs_flat"]
        else:
            row = flat(input_dict["obs"])
        self._seen = self.net.features((row,))
        return self.net.policy.forward(self._seen), state or []

    def value_function(self) -> Tensor:
        """Values `[B]` of the observations that `forward` saw last."""
        assert self._seen is not None, "call forward first"
        return self.net.value.forward(self._seen).squeeze(1)


class ClassicNet(nn.Module):
    """A classic custom model behind the calls that `TorchNetwork` makes."""

    def __init__(self, model: TorchModelV2, view: ObsView) -> None:
        super().__init__()
        self.model = model
        self._view = view

    def forward(self, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Outputs `[B, K]` and values `[B]`."""
        return self.act(inputs), self.model.value_function()

    def act(self, inputs: Tensors) -> Tensor:
        """Outputs alone."""
        outputs: Tensor = self.asked(inputs, (), None)[0]
        return outputs

    def values(self, inputs: Tensors) -> Tensor:
        """Values alone."""
        self.act(inputs)
        return self.model.value_function()

    def asked(self, inputs: Tensors, state: Tensors, seq_lens: Tensor | None, **more: Tensor) -> tuple[Any, Any]:
        """What the model answers: outputs and state."""
        seen = self._view(inputs)
        seen.update(more)
        answer = self.model(seen, list(state), seq_lens)
        if not isinstance(answer, tuple) or len(answer) != 2:
            wanted = "(outputs, state)" if state else "(outputs, state), here (outputs, [])"
            raise ConfigError(f"{type(self.model).__name__}.forward must return {wanted}")
        return answer


def orthogonal(layer: Any, gain: float) -> Any:
    """The layer with orthogonal weights and no bias, as it starts."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
