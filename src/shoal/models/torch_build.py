"""Which PyTorch modules a network is made of, and making it."""

from __future__ import annotations

import inspect
from math import prod
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shoal.config.model import ModelConfig
from shoal.envs.env_errors import error_text
from shoal.envs.observations import Kind
from shoal.envs.spaces import Space
from shoal.errors import ConfigError, ShoalError
from shoal.models.catalog import custom_model_class
from shoal.models.encoder import Encoder
from shoal.models.network import Inputs
from shoal.models.torch_inputs import ObsView
from shoal.models.torch_memory import ClassicMemoryNet, MemoryNet
from shoal.models.torch_models import JOINED_KINDS, ClassicNet, JoinedNet, MLPNet, TorchModelV2
from shoal.models.torch_network import TorchNetwork

NUM_EXAMPLES = 3


def build_torch_network(
    encoder: Encoder,
    num_outputs: int,
    free_outputs: NDArray[np.int64],
    model: ModelConfig,
    action_space: Space,
    seed: int,
    device: str = "cpu",
    previous: tuple[int, int] = (0, 0),
    num_numbers: int = 0,
) -> TorchNetwork:
    """The network for encoded observations and a model config; the same for the same seed.

    `previous` are the widths of the action and of the reward before each step, as a network with memory sees them.
    `num_numbers` are those of an action, which a critic sees at the end of the feature vector.
    """
    parts = _with_numbers(list(zip(encoder.spec.kinds, encoder.shapes, strict=True)), num_numbers)
    kinds = [kind for kind, _ in parts]
    num_computed = num_outputs - len(free_outputs)
    # The caller's own random numbers go on as if nothing had been drawn here.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        label: str | None = None
        module: nn.Module
        if model.custom_model is not None:
            assert not len(free_outputs), "a custom model computes all its outputs"
            custom = _custom_module(encoder, num_outputs, model, action_space, previous)
            module, label = custom, f"custom model {type(custom.model).__name__}"
        elif model.memory is not None:
            module = MemoryNet(parts, sum(previous), num_computed, model)
        elif JOINED_KINDS & set(kinds):
            module = JoinedNet(parts, num_computed, model)
        else:
            hiddens, activation = model.fcnet_hiddens, model.fcnet_activation
            module = MLPNet(encoder.size + num_numbers, num_computed, hiddens, activation, model.vf_share_layers)
        example = _with_example_numbers(encoder, _example(encoder, seed), num_numbers)
        if initial_state := getattr(module, "initial_state", ()):  # each example is a sequence of its own
            before = np.ones((NUM_EXAMPLES, sum(previous)), np.float32)
            states = (np.repeat(part[None], NUM_EXAMPLES, axis=0) for part in initial_state)
            example = (*example, before, *states, np.ones(NUM_EXAMPLES, np.int64))
        return TorchNetwork(module, num_outputs, free_outputs, example, device, label)


def _example(encoder: Encoder, seed: int) -> Inputs:
    """A few observations of no meaning, as a network gets them; of sequences, empty, short and full ones."""
    rng = np.random.default_rng(seed)
    example: list[NDArray[Any]] = []
    for kind, shape, dtype in zip(encoder.spec.kinds, encoder.shapes, encoder.spec.dtypes, strict=True):
        numbers = rng.random((NUM_EXAMPLES, *shape), np.float32)
        if kind == "items":
            lengths = np.array([[0], [1], [shape[0]]])
            numbers *= (np.arange(shape[0]) < lengths)[:, :, None]
            numbers[:, :, 0] = np.arange(shape[0]) < lengths
        elif kind == "mask":
            numbers += 1
        example.append((numbers * (255 if dtype == np.uint8 else 1)).astype(dtype))
    return tuple(example)


def _with_numbers(parts: list[tuple[Kind, tuple[int, ...]]], count: int) -> list[tuple[Kind, tuple[int, ...]]]:
    """The parts of an observation with `count` more features at the end of its vector."""
    if not count:
        return parts
    if parts[0][0] != "vector":
        return [("vector", (count,)), *parts]
    return [("vector", (parts[0][1][0] + count,)), *parts[1:]]


def _with_example_numbers(encoder: Encoder, example: Inputs, count: int) -> Inputs:
    if not count:
        return example
    numbers = np.linspace(-1, 1, NUM_EXAMPLES * count, dtype=np.float32).reshape(NUM_EXAMPLES, count)
    if not encoder.spec.vector_size:
        return (numbers, *example)
    return (np.concatenate([example[0], numbers], axis=1), *example[1:])


def _custom_module(
    encoder: Encoder, num_outputs: int, model: ModelConfig, action_space: Space, previous: tuple[int, int]
) -> ClassicNet:
    assert model.custom_model is not None
    model_class = custom_model_class(model.custom_model)
    name = model_class.__name__
    if not issubclass(model_class, TorchModelV2):
        raise ConfigError(f"config.model.custom_model: write class {name}(TorchModelV2), with TorchModelV2 from shoal")
    obs_space = encoder.spec.space
    if {*encoder.spec.kinds} - {"image"}:
        width = encoder.size + sum(prod(shape) for shape in encoder.spec.image_shapes)
        original, obs_space = obs_space, gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        obs_space.original_space = original  # type: ignore[attr-defined]
    accepted = inspect.signature(model_class.__init__).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    extra = {key: value for key, value in model.custom_model_config.items() if takes_all or key in accepted}
    try:
        made = model_class(obs_space, action_space, num_outputs, dict(vars(model)), name, **extra)
        has_memory = len(made.get_initial_state()) > 0
    except ShoalError:
        raise
    except Exception as error:
        raise ConfigError(f"custom model {name} cannot be made: {error_text(error)}") from error
    for word in ("custom_loss", "metrics"):
        if hasattr(made, word):
            raise ConfigError(f"custom model {name}: {word} is not supported; leave it out")
    if has_memory:
        return ClassicMemoryNet(made, ObsView(encoder), previous)
    return ClassicNet(made, ObsView(encoder))
