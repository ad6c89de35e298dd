"""What a policy does without exploring, as plain arrays: from an observation to an action, step by step.

Every format that is written by hand (NumPy, C, Fortran, FMU, ONNX) is made of a plan, and knows nothing of networks.
An observation is one flat row of numbers in the order of its space's leaves, as the environment gives them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shoal.config.model import ModelConfig
from shoal.envs.observations import Kind, ObsLeaf, ObsSpec
from shoal.envs.spaces import ActionLeaf, ActionSpec, Path, action_bounds, action_scale, channels_first, image_sides
from shoal.errors import ConfigError
from shoal.models.convolutions import classic_convolutions, default_convolutions
from shoal.models.distributions import log_std_inputs
from shoal.models.encoder import MOST_ONE_HOT_CHOICES, Encoder
from shoal.models.masked import MaskedNetwork, masked_outputs
from shoal.models.mlp import MLP
from shoal.models.network import Network
from shoal.models.policy import Policy

RESERVED = ("hidden", "memory", "before", "reward", "outputs", "next_hidden", "next_memory", "next_before")
"""What formats call other things than leaves."""

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ObsField:
    """One leaf of an observation, and where its numbers lie in the flat row."""

    name: str
    path: Path
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    space: Any

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class ActionField:
    """One leaf of an action: how what the network puts out becomes its numbers.

    A categorical number is the largest of its outputs, a bernoulli one whether its output is positive; a gaussian one
    is `clip(scale * tanh?(output) + middle)`, rounded where it is an integer.
    """

    name: str
    path: Path
    kind: Literal["categorical", "bernoulli", "gaussian"]
    shape: tuple[int, ...]
    offset: int  # in the flat row of an action
    output: int  # its first output of the network
    dtype: np.dtype[Any]
    is_int: bool  # as Discrete is, not an array
    choices: tuple[int, ...]
    first: Integers
    squashed: NDArray[np.bool_]
    scale: Floats
    middle: Floats
    low: NDArray[np.float64]  # infinite where nothing is clipped
    high: NDArray[np.float64]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return len(self.choices) if self.kind == "categorical" else prod(self.shape)

    @property
    def is_integer(self) -> bool:
        """Whether its numbers are whole."""
        return self.kind != "gaussian" or bool(np.issubdtype(self.dtype, np.integer))


@dataclass(frozen=True)
class Encoding:
    """From the numbers of the flat row to features: `encoder.py` in arrays."""

    source: Integers  # [R], where each number of the vector is in the row
    first: NDArray[np.float64]  # [R], what is subtracted from it
    scale: Floats | None  # [R]
    shift: Floats
    filter_shift: Floats | None  # [R]
    filter_scale: Floats
    filter_limit: Floats
    plain: Integers  # the numbers that are features as they are
    choices: tuple[tuple[int, int, int, bool], ...]  # number, count of values, features, whether they are indicators
    size: int


@dataclass(frozen=True)
class ConvLayer:
    """One convolution over `[C, H, W]` with its activation."""

    weight: Floats  # [O, C, KH, KW]
    bias: Floats
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, right, top, bottom
    before: tuple[int, int, int]  # [C, H, W]
    after: tuple[int, int, int]
    activation: str


@dataclass(frozen=True)
class Image:
    """The convolutions over one image; a pixel is `(x - least) * factor`."""

    field: ObsField
    sides: tuple[int, int, int]  # channels, height, width
    axes: tuple[int, int, int]  # how far apart neighbours along each of them are in the flat row
    least: float
    factor: float
    layers: tuple[ConvLayer, ...]

    @property
    def size(self) -> int:
        """How many features it becomes."""
        return prod(self.layers[-1].after)


@dataclass(frozen=True)
class DenseLayer:
    """`activation(x @ weight + bias)`, with layer normalisation before the activation where it has one."""

    weight: Floats  # [I, O]
    bias: Floats
    activation: str = "linear"
    layer_norm: bool = False


@dataclass(frozen=True)
class Cell:
    """An LSTM (gates i, f, g, o) or a GRU (r, z, n), as PyTorch has them."""

    kind: Literal["lstm", "gru"]
    size: int
    weight_x: Floats  # [I, G * H]
    weight_h: Floats  # [H, G * H]
    bias_x: Floats
    bias_h: Floats


@dataclass(frozen=True)
class Mask:
    """Which numbers of the row rule outputs out, and how many belong to each choice."""

    source: Integers
    outputs: Integers
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A policy as arrays."""

    fields: tuple[ObsField, ...]
    num_obs: int
    encoding: Encoding | None
    images: tuple[Image, ...]
    sees_action: bool  # whether the action before is among the features
    sees_reward: bool
    layers: tuple[DenseLayer, ...]
    cell: Cell | None
    head: DenseLayer
    mask: Mask | None
    actions: tuple[ActionField, ...]
    num_action: int

    @property
    def previous_size(self) -> int:
        """How many features the action and the reward before are."""
        widths = [sum(a.choices) if a.kind == "categorical" else a.size for a in self.actions]
        return sum(widths) * self.sees_action + self.sees_reward

    @property
    def num_features(self) -> int:
        """How many features the first layer sees."""
        vector = 0 if self.encoding is None else self.encoding.size
        return vector + sum(image.size for image in self.images) + self.previous_size

    @property
    def num_params(self) -> int:
        """How many numbers were learned, without those of the filter."""
        arrays = [a for layer in (*self.layers, self.head) for a in (layer.weight, layer.bias)]
        arrays += [a for image in self.images for layer in image.layers for a in (layer.weight, layer.bias)]
        if self.cell is not None:
            arrays += [self.cell.weight_x, self.cell.weight_h, self.cell.bias_x, self.cell.bias_h]
        return sum(array.size for array in arrays)


def not_in_a_plan(policy: Policy, model: ModelConfig) -> str | None:
    """What of a policy no plan can tell, in words; None if it can all be told."""
    kinds = policy.obs_spec.kinds
    if model.custom_action_dist is not None:
        return "a custom action distribution"
    if isinstance(_inner(policy.network), MLP):
        return None
    if model.custom_model is not None:
        return "a custom model"
    if model.use_attention:
        return "attention (use_attention)"
    if "items" in kinds:
        return "observations of varying length"
    if "avail" in kinds:
        return "avail_actions"
    return None


def plan_of(policy: Policy, model: ModelConfig) -> Plan:
    """The plan of a policy; `not_in_a_plan` must have found nothing."""
    fields = obs_fields(policy.obs_spec)
    by_path = {field.path: field for field in fields}
    actions = action_fields(policy.action_spec)
    encoder, network = policy.encoder, _inner(policy.network)
    encoding = None
    if policy.obs_spec.vector_size:
        encoding = encoding_of(encoder, vector_sources(policy.obs_spec, by_path))
    layers, cell, head = _layers(network, policy, model)
    previous = None if policy.recurrence is None else policy.recurrence.previous
    return Plan(
        fields,
        sum(field.size for field in fields),
        encoding,
        tuple(_images(network, policy.obs_spec, by_path, model)),
        previous is not None and previous.with_action,
        previous is not None and previous.with_reward,
        layers,
        cell,
        head,
        _mask(policy, by_path),
        actions,
        policy.action_spec.size,
    )


def obs_fields(spec: ObsSpec) -> tuple[ObsField, ...]:
    """The leaves of an observation; a sequence is its packed part."""
    names = _names([leaf.path for leaf in spec.leaves], "obs")
    fields, offset = [], 0
    for leaf, name in zip(spec.leaves, names, strict=True):
        shape = spec.shapes[leaf.part] if leaf.items is not None else leaf.shape
        fields.append(ObsField(name, leaf.path, leaf.kind, shape, offset, leaf.space))
        offset += prod(shape)
    return tuple(fields)


def action_fields(spec: ActionSpec) -> tuple[ActionField, ...]:
    """The leaves of an action."""
    names = _names([leaf.path for leaf in spec.leaves], "action")
    fields, output = [], 0
    for leaf, name in zip(spec.leaves, names, strict=True):
        scale, middle = np.ones(leaf.size, np.float32), np.zeros(leaf.size, np.float32)
        low, high = np.full(leaf.size, -np.inf), np.full(leaf.size, np.inf)
        if leaf.kind == "gaussian":
            assert isinstance(leaf.space, spaces.Box)
            scale, middle = action_scale(leaf, spec.normalize)
            if spec.clip or np.issubdtype(leaf.space.dtype or np.float32, np.integer):
                bounds = action_bounds(leaf.space)
                low, high = bounds[0].astype(np.float64), bounds[1].astype(np.float64)
        fields.append(_action_field(leaf, name, output, (scale, middle), (low, high)))
        output += {"categorical": sum(leaf.choices), "bernoulli": leaf.size, "gaussian": 2 * leaf.size}[leaf.kind]
    return tuple(fields)


def _action_field(
    leaf: ActionLeaf, name: str, output: int, scaling: tuple[Floats, Floats], bounds: tuple[Any, Any]
) -> ActionField:
    return ActionField(
        name,
        leaf.path,
        leaf.kind,
        tuple(leaf.space.shape or ()),
        leaf.columns.start,
        output,
        np.dtype(leaf.space.dtype or np.float32),
        isinstance(leaf.space, spaces.Discrete),
        leaf.choices,
        leaf.first,
        leaf.squashed,
        *scaling,
        *bounds,
    )


def vector_sources(spec: ObsSpec, by_path: dict[Path, ObsField]) -> Integers:
    """Where the numbers of the vector part are in the flat row."""
    sources: list[int] = []
    for leaf in spec.leaves:
        if leaf.kind == "vector":
            field = by_path[leaf.path]
            sources += range(field.offset, field.offset + field.size)
    return np.array(sources, np.int64)


def encoding_of(encoder: Encoder, source: Integers) -> Encoding:
    """An encoder of the vector as arrays."""
    filtered, none = encoder.filter, np.zeros(0, np.float32)
    choices = []
    for column, count, width in encoder.choices:
        choices.append((int(column), int(count), int(width), count <= MOST_ONE_HOT_CHOICES))
    return Encoding(
        source,
        _firsts(encoder.spec.leaves),
        encoder.scale,
        encoder.shift,
        None if filtered is None else filtered.shift,
        none if filtered is None else filtered.scale,
        none if filtered is None else filtered.highest,
        encoder.plain,
        tuple(choices),
        encoder.size,
    )


def _firsts(leaves: list[ObsLeaf]) -> NDArray[np.float64]:
    firsts = [np.zeros(0)]
    for leaf in leaves:
        if leaf.kind == "vector":
            firsts.append(np.zeros(prod(leaf.shape)) if leaf.first is None else leaf.first.astype(np.float64))
    return np.concatenate(firsts)


def _inner(network: Network) -> Network:
    """The network without what applies its mask."""
    return network.network if isinstance(network, MaskedNetwork) else network


def _names(paths: list[Path], alone: str) -> list[str]:
    """A name for each leaf that every language takes, no two alike."""
    names: list[str] = []
    for path in paths:
        name = re.sub(r"\W+", "_", "_".join(map(str, path)), flags=re.ASCII).strip("_") or alone
        if name[0].isdigit():
            name = f"{alone}_{name}"
        while name.lower() in (*RESERVED, *(other.lower() for other in names)):
            name += "_"
        names.append(name)
    return names


def _mask(policy: Policy, by_path: dict[Path, ObsField]) -> Mask | None:
    spec = policy.obs_spec.mask
    if spec is None:
        return None
    source = np.zeros(spec.size, np.int64)
    for path, columns in spec.columns.items():
        offset = by_path[path].offset
        source[columns] = np.arange(offset, offset + columns.stop - columns.start)
    return Mask(source, masked_outputs(spec, policy.action_spec), tuple(count for _, count in spec.choices))


def _layers(
    network: Network, policy: Policy, model: ModelConfig
) -> tuple[tuple[DenseLayer, ...], Cell | None, DenseLayer]:
    """The hidden layers that the outputs depend on, the memory after them, and the head."""
    params = {name: np.array(value, np.float32) for name, value in network.named_params().items()}
    free = log_std_inputs(policy.distribution) if "log_std" in params else np.zeros(0, np.int64)
    if isinstance(network, MLP):
        net = "shared" if network.groups == 1 else "policy"
        layers = []
        for layer in range(len(network.hiddens)):
            weight, bias = params[f"{net}.hidden{layer}.weight"], params[f"{net}.hidden{layer}.bias"]
            layers.append(DenseLayer(weight, bias, network.activation_name, network.layer_norm))
        return tuple(layers), None, _head(params["policy.weight"], params["policy.bias"], params, free)
    has_image = "image" in policy.obs_spec.kinds
    activation = model.conv_activation if has_image else model.fcnet_activation
    if policy.recurrence is not None:
        layers = _torch_layers(params, "memory.dense.", activation)
        cell = _cell(params, "lstm" if model.use_lstm else "gru")
        return tuple(layers), cell, _head(params["policy.weight"].T, params["policy.bias"], params, free)
    place = "dense." if has_image else ""
    layers = _torch_layers(params, f"{place}shared.", activation)
    layers += _torch_layers(params, f"{place}policy.", activation)
    head = f"{place}policy.head."
    return tuple(layers), None, _head(params[f"{head}weight"].T, params[f"{head}bias"], params, free)


def _torch_layers(params: dict[str, Floats], prefix: str, activation: str) -> list[DenseLayer]:
    layers: list[DenseLayer] = []
    while f"{prefix}hidden{len(layers)}.weight" in params:
        name = f"{prefix}hidden{len(layers)}"
        layers.append(DenseLayer(np.ascontiguousarray(params[f"{name}.weight"].T), params[f"{name}.bias"], activation))
    return layers


def _cell(params: dict[str, Floats], kind: Literal["lstm", "gru"]) -> Cell:
    weight_x, weight_h, bias_x, bias_h = (
        params[f"memory.cell.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    size = weight_h.shape[1]
    return Cell(kind, size, np.ascontiguousarray(weight_x.T), np.ascontiguousarray(weight_h.T), bias_x, bias_h)


def _head(weight: Floats, bias: Floats, params: dict[str, Floats], free: Integers) -> DenseLayer:
    """The last layer, in which outputs that depend on no observation have no weights."""
    if not len(free):
        return DenseLayer(np.ascontiguousarray(weight), bias)
    num_outputs = len(bias) + len(free)
    computed = np.setdiff1d(np.arange(num_outputs), free)
    whole, constants = np.zeros((len(weight), num_outputs), np.float32), np.zeros(num_outputs, np.float32)
    whole[:, computed], constants[computed] = weight, bias
    constants[free] = params["log_std"]
    return DenseLayer(whole, constants)


def _images(network: Network, spec: ObsSpec, by_path: dict[Path, ObsField], model: ModelConfig) -> list[Image]:
    params, images = network.named_params(), []
    prefix = "sight." if model.memory is not None else ""
    for leaf in spec.leaves:
        if leaf.kind != "image":
            continue
        sides = image_sides(leaf.shape)
        channels, height, width = sides
        axes = (0, width, 1)
        if len(leaf.shape) == 3:
            axes = (height * width, width, 1) if channels_first(leaf.shape) else (1, width * channels, channels)
        plan = default_convolutions(height, width)
        if model.conv_filters is not None:
            plan = classic_convolutions(model.conv_filters, height, width)
        layers, before = [], sides
        for index, layer in enumerate(plan):
            name = f"{prefix}image{leaf.part - (spec.vector_size > 0)}.conv{index}"
            after = (layer.channels, *layer.map_of(*before[1:]))
            weight, bias = np.array(params[f"{name}.weight"]), np.array(params[f"{name}.bias"])
            layers.append(ConvLayer(weight, bias, layer.stride, layer.padding, before, after, model.conv_activation))
            before = after
        images.append(Image(by_path[leaf.path], sides, axes, *_pixel(leaf), tuple(layers)))
    return images


def _pixel(leaf: ObsLeaf) -> tuple[float, float]:
    """What is subtracted from a pixel, and what the rest is multiplied with."""
    space = leaf.space
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return 0.0, float(np.float32(1 / 255))
    if not np.issubdtype(space.dtype or np.float32, np.integer) or not space.is_bounded():
        return 0.0, 1.0
    low, high = float(space.low.min()), float(space.high.max())
    return float(np.float32(low)), float(np.float32(1 / max(high - low, 1)))


def refusal(format_name: str, what: str, instead: str) -> ConfigError:
    """The sentence for a policy that a format cannot carry."""
    return ConfigError(f"--format {format_name}: this policy has {what}, which it cannot carry; use --format {instead}")
