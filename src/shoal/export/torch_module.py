"""A policy as one PyTorch module: from the leaves of an observation to those of an action.

Inputs are the leaves of an observation, `[B, ...]` each, then the reward before and the memory where the policy has
them; a sequence is its packed part `[B, max_len, 1 + R]`, with a 1 in front of each item. Outputs are the leaves of the
action, what the network put out, and the memory for the next step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.envs.observations import ObsLeaf
from shoal.errors import ConfigError
from shoal.export.graph_answers import asked_by_name
from shoal.export.made import Made, Request
from shoal.export.plan import (
    ActionField,
    DenseLayer,
    Encoding,
    action_fields,
    encoding_of,
    not_in_a_plan,
    obs_fields,
    plan_of,
    refusal,
    vector_sources,
)
from shoal.export.tensor_names import action_names, obs_tensors
from shoal.models.distributions import log_std_inputs
from shoal.models.encoder import Encoder
from shoal.models.masked import MaskedNetwork, masked_outputs
from shoal.models.mlp import MLP
from shoal.models.torch_models import ACTIVATIONS
from shoal.models.torch_network import TorchNetwork

Tensors = tuple[Tensor, ...]


class DenseLayers(nn.Module):
    """The layers of a NumPy network."""

    def __init__(self, layers: tuple[DenseLayer, ...]) -> None:
        super().__init__()
        self._layers = layers
        for index, layer in enumerate(layers):
            self.register_buffer(f"weight{index}", torch.from_numpy(layer.weight.T.copy()))
            self.register_buffer(f"bias{index}", torch.from_numpy(layer.bias.copy()))

    def act(self, inputs: Tensors) -> Tensor:
        """Outputs `[B, K]`."""
        x = inputs[0]
        for index, layer in enumerate(self._layers):
            x = F.linear(x, getattr(self, f"weight{index}"), getattr(self, f"bias{index}"))
            if layer.layer_norm:
                x = F.layer_norm(x, (len(layer.bias),), eps=1e-5)
            x = ACTIVATIONS[layer.activation](x)
        return x


class PolicyModule(nn.Module):
    """Observations in, likeliest actions out."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        policy = request.subject.policy
        self.spec, self.recurrence = policy.obs_spec, policy.recurrence
        self.fields, self.actions = obs_fields(self.spec), action_fields(policy.action_spec)
        self.encoding = encoding_of(policy.encoder, vector_sources(self.spec, {f.path: f for f in self.fields}))
        network = policy.network.network if isinstance(policy.network, MaskedNetwork) else policy.network
        self.free: NDArray[np.int64] = np.zeros(0, np.int64)
        self.num_outputs = network.num_outputs
        if isinstance(network, MLP):
            plan = plan_of(policy, request.subject.model)
            self.net: Any = DenseLayers((*plan.layers, plan.head))
        else:
            assert isinstance(network, TorchNetwork)
            self.net = network.module
            named = network.named_params()
            if "log_std" in named and len(log_std_inputs(policy.distribution)) == len(named["log_std"]):
                self.free = log_std_inputs(policy.distribution)
                self.register_buffer("log_std", torch.from_numpy(named["log_std"].copy()))
        self.mask_places: list[int] | None = None  # of each output, its flag, or one behind them that is always set
        if self.spec.mask is not None:
            places = np.full(self.num_outputs, self.spec.mask.size)
            places[masked_outputs(self.spec.mask, policy.action_spec)] = np.arange(self.spec.mask.size)
            self.mask_places = places.tolist()
        self.state_shapes = [part.shape for part in getattr(network, "initial_state", ())]

    @property
    def previous_size(self) -> int:
        """How many features the action before is."""
        return 0 if self.recurrence is None else self.recurrence.previous.action_size

    def forward(self, *inputs: Tensor) -> Tensors:
        """See the module's docstring."""
        rest = list(inputs[len(self.fields) :])
        parts = self._parts(inputs)
        after: Tensors = ()
        if self.recurrence is None:
            outputs = self.net.act(parts)
        else:
            before = []
            with_reward = self.recurrence.previous.with_reward
            reward = rest.pop(0) if with_reward else None
            if self.previous_size:
                before.append(rest.pop(0))
            if reward is not None:
                before.append(reward.unsqueeze(1))
            seen = torch.cat(before, dim=1) if before else rest[0].new_zeros(rest[0].shape[0], 0)
            outputs, after = self.net.step((*parts, seen), tuple(rest))
        outputs = self._with_free(outputs)
        if self.mask_places is not None:
            always = torch.ones_like(parts[-1][:, :1])
            allowed = torch.cat([parts[-1], always], dim=1)[:, self.mask_places]
            outputs = outputs.masked_fill(~allowed, -1e30)
        values, noted = [], []
        for action in self.actions:
            value, features = _decoded(action, outputs)
            values.append(value)
            noted.append(features)
        memory = (torch.cat(noted, dim=1),) if self.previous_size else ()
        return (*values, outputs, *memory, *after)

    def _with_free(self, computed: Tensor) -> Tensor:
        """Outputs with those among them that depend on no observation."""
        if not len(self.free):
            return computed
        constants = self.log_std.expand(computed.shape[0], -1)  # type: ignore[operator]
        order = np.argsort(np.concatenate([np.setdiff1d(np.arange(self.num_outputs), self.free), self.free]))
        return torch.cat([computed, constants], dim=1)[:, order.tolist()]

    def _parts(self, leaves: Tensors) -> Tensors:
        """The inputs of the network, of the leaves of observations."""
        vector: list[Tensor] = []
        parts: dict[int, Tensor] = {}
        flags: list[Tensor] = []
        for leaf, tensor in zip(self.spec.leaves, leaves, strict=False):
            if leaf.kind == "vector":
                flat = tensor.flatten(1) if tensor.dim() > 1 else tensor.unsqueeze(1)
                if leaf.first is not None:
                    flat = flat - torch.from_numpy(leaf.first)
                vector.append(flat.float())
            elif leaf.kind == "mask":
                flags.append(tensor.flatten(1) != 0)
            else:
                parts[leaf.part] = _part(leaf, tensor)
        if vector:
            parts[0] = _encoded(self.encoding, torch.cat(vector, dim=1))
        if flags:
            parts[len(self.spec.kinds) - 1] = torch.cat(flags, dim=1)
        return tuple(parts[place] for place in range(len(self.spec.kinds)))


def make_torchscript(request: Request) -> Made:
    """A TorchScript module."""
    file = request.folder / f"{request.name}.pt"
    module = _module(request, "torchscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libtorch and FTorch load nothing newer
        traced = request.folder / "traced.pt"
        torch.jit.save(_traced(request, module), str(traced))
        _copy_without_places(traced, file)
        traced.unlink()
        loaded = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
    return _made(request, module, file, loaded)


def make_torch_export(request: Request) -> Made:
    """A program of `torch.export`, for batches of any size."""
    file = request.folder / f"{request.name}.pt2"
    module = _module(request, "torch_export").eval()
    two = tuple(part.repeat_interleave(2, dim=0) for part in _example(request, module).values())  # one becomes constant
    batch = torch.export.Dim("B", min=1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, two, dynamic_shapes={"inputs": tuple({0: batch} for _ in two)})
            _forget_places(program)
            torch.export.save(program, file)
        except Exception as error:
            raise _refused("torch_export", error, "torchscript") from error
        loaded = torch.export.load(file).module()
    return _made(request, module, file, loaded)


def _copy_without_places(traced: Path, file: Path) -> None:
    """Copy a TorchScript file but for what says where on this machine each line of Python was."""
    reader, writer = torch._C.PyTorchFileReader(str(traced)), torch._C.PyTorchFileWriter(str(file))
    names = reader.get_all_records()
    version = next(name for name in names if name in ("version", ".data/version"))
    writer.set_min_version(int(reader.get_record(version)))
    for name in names:
        if name not in (version, "byteorder", ".data/serialization_id") and not name.endswith(".debug_pkl"):
            record = reader.get_record(name)  # the writer has those three of its own
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def _forget_places(program: torch.export.ExportedProgram) -> None:
    """Take from a program where on this machine each line of Python was."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def _module(request: Request, format_name: str) -> PolicyModule:
    """The policy as a module; what none can carry is refused."""
    if request.subject.model.custom_action_dist is not None:
        raise refusal(format_name, "a custom action distribution", "hub")
    return PolicyModule(request)


def _made(request: Request, module: PolicyModule, file: Path, loaded: Any) -> Made:
    """A file, and what was loaded from it answers."""
    inputs, names = list(_example(request, module)), _output_names(module)

    def run(given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            found = loaded(*(torch.from_numpy(np.ascontiguousarray(given[name])) for name in inputs))
        return dict(zip(names, (part.numpy() for part in found), strict=True))

    notes = {"inputs": inputs, "outputs": names, "any_batch": _takes_batches(loaded, request, module)}
    answers = asked_by_name(request, run, _state_shapes(module))
    return Made([file], answers, f"PyTorch {torch.__version__}", notes=notes)


def write_onnx(request: Request, file: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Write a model by PyTorch's exporter; returns the shapes of its memory, and notes for the proof."""
    assert not_in_a_plan(request.subject.policy, request.subject.model) is not None
    module = PolicyModule(request)
    traced, names = _traced(request, module), _output_names(module)
    example = _example(request, module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                traced,
                tuple(example.values()),
                str(file),
                dynamo=False,
                input_names=list(example),
                output_names=names,
                dynamic_axes={name: {0: "B"} for name in (*example, *names)},
            )
        except Exception as error:
            raise _refused("onnx", error, "torchscript") from error
    return _state_shapes(module), {"by": f"PyTorch {torch.__version__}"}


def _traced(request: Request, module: PolicyModule) -> Any:
    """The module's operations, as they are for one observation."""
    module.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that sizes become constants, which is tried below, and of deprecations
        try:
            return torch.jit.trace(module, tuple(_example(request, module).values()), check_trace=False)  # type: ignore[no-untyped-call]
        except Exception as error:  # of the user's model, which may raise anything
            raise _refused("torchscript", error, "hub") from error


def _refused(format_name: str, error: Exception, instead: str) -> ConfigError:
    """The sentence for a model that PyTorch cannot turn into something else."""
    what = " ".join(str(error).split())[:300]
    return ConfigError(f"--format {format_name}: PyTorch cannot write this policy: {what}; use --format {instead}")


def _output_names(module: PolicyModule) -> list[str]:
    """What the outputs are called, in their order."""
    names = [*action_names(module.fields, module.actions), "outputs"]
    return [*names, *(f"next_{name}" for name in _state_shapes(module))]


def _example(request: Request, module: PolicyModule) -> dict[str, Tensor]:
    """One observation as the inputs of the module, by name."""
    found: dict[str, Tensor] = {}
    for field, tensor in zip(module.fields, obs_tensors(module.fields, request.asked), strict=True):
        found[field.name] = torch.from_numpy(tensor[:1])
    if module.recurrence is not None and module.recurrence.previous.with_reward:
        found["reward"] = torch.zeros(1)
    for name, shape in _state_shapes(module).items():
        found[name] = torch.zeros(1, *shape)
    return found


def _state_shapes(module: PolicyModule) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    if module.previous_size:
        shapes["before"] = (module.previous_size,)
    for index, shape in enumerate(module.state_shapes):
        shapes[f"state{index}"] = tuple(shape)
    return shapes


def _takes_batches(loaded: Any, request: Request, module: PolicyModule) -> bool:
    """Whether several observations at once give the outputs that they give one by one."""
    several = [part.repeat_interleave(3, dim=0) for part in _example(request, module).values()]
    place = len(module.actions)
    try:
        with torch.no_grad():
            one, three = loaded(*_example(request, module).values())[place], loaded(*several)[place]
    except RuntimeError:
        return False
    return three.shape == (3, *one.shape[1:]) and bool(torch.allclose(three, one.expand_as(three), atol=1e-4))


def _part(leaf: ObsLeaf, tensor: Tensor) -> Tensor:
    """A part beside the vector as a network reads it."""
    if leaf.items is not None:
        encoder = Encoder(leaf.items.spec)
        size = leaf.items.spec.vector_size
        encoding = encoding_of(encoder, np.arange(size))
        rows = tensor.flatten(0, 1)
        encoded = _encoded(encoding, rows[:, 1:])
        return torch.cat([rows[:, :1], encoded], dim=1).reshape(-1, leaf.items.max_len, 1 + encoder.size)
    if leaf.kind != "image" or tensor.dtype != torch.int64:
        return tensor
    low, high = float(leaf.space.low.min()), float(leaf.space.high.max())  # type: ignore[attr-defined]
    if not leaf.space.is_bounded():  # type: ignore[attr-defined]
        return tensor.float()
    return (tensor.float() - low) * float(np.float32(1 / max(high - low, 1)))


def _encoded(encoding: Encoding, raw: Tensor) -> Tensor:
    """Features `[B, D]` of stored numbers `[B, R]`."""
    x = raw
    if encoding.scale is not None:
        x = x * torch.from_numpy(encoding.scale) + torch.from_numpy(encoding.shift)
    if encoding.filter_shift is not None:
        limit = torch.from_numpy(encoding.filter_limit)
        x = (x - torch.from_numpy(encoding.filter_shift)) * torch.from_numpy(encoding.filter_scale)
        x = torch.minimum(torch.maximum(x, -limit), limit)
    if len(encoding.plain) == len(encoding.source):
        return x
    features = [x[:, encoding.plain.tolist()]]
    for column, count, width, is_indicator in encoding.choices:
        value = raw[:, column : column + 1].clamp(0, count - 1).to(torch.int64)
        if is_indicator:
            features.append((value == torch.arange(count)).float())
        else:
            powers = 2 ** torch.arange(width)
            features.append((torch.div(value, powers, rounding_mode="floor") % 2).float())
    return torch.cat(features, dim=1)


def _decoded(action: ActionField, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """One leaf of the actions, and the features that the next step sees of it."""
    shape = (-1, *action.shape)
    if action.kind == "categorical":
        picked, seen, output = [], [], action.output
        for count in action.choices:
            best = outputs[:, output : output + count].argmax(dim=1, keepdim=True)
            picked.append(best)
            seen.append((best == torch.arange(count)).float())
            output += count
        value = torch.cat(picked, dim=1) + torch.from_numpy(action.first)
        return value.reshape(shape), torch.cat(seen, dim=1)
    numbers = outputs[:, action.output : action.output + prod(action.shape)]
    if action.kind == "bernoulli":
        bits = numbers > 0
        return bits.to(torch.int64).reshape(shape), bits.float()
    if action.squashed.any():
        numbers = torch.where(torch.from_numpy(action.squashed), torch.tanh(numbers), numbers)
    scale, middle = torch.from_numpy(action.scale), torch.from_numpy(action.middle)
    numbers = numbers * scale + middle
    if action.is_integer:
        numbers = torch.round(numbers)
    double: Callable[[NDArray[Any]], Tensor] = lambda array: torch.from_numpy(array.astype(np.float64))  # noqa: E731
    numbers = torch.minimum(torch.maximum(numbers.double(), double(action.low)), double(action.high))
    seen_now = ((numbers - middle) / torch.where(scale == 0, 1.0, scale)).float()
    if action.is_integer:
        return numbers.to(torch.int64).reshape(shape), seen_now
    return numbers.to(torch.float64 if action.dtype == np.float64 else torch.float32).reshape(shape), seen_now
