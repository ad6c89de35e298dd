"""A plan as an ONNX graph, put together by hand: no PyTorch is needed.

Inputs are the leaves of an observation, `[B, ...]` each, then the reward before and the memory where the policy has
them. Outputs are the leaves of the action, what the network put out, and the memory for the next step (zeros at first).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from shoal.export.plan import ActionField, Cell, DenseLayer, Encoding, Image, Plan
from shoal.export.tensor_names import action_names, obs_dtype

OPSET = 17
IR_VERSION = 8
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.bool_): TensorProto.BOOL,
}


class Graph:
    """Nodes and constants of a graph that grows; every method gives the name of the tensor that it adds."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One node with one output."""
        name = f"node/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        """An array."""
        name = f"constant/{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def input(self, name: str, dtype: Any, shape: tuple[int, ...]) -> str:
        """An input `[B, *shape]`."""
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[np.dtype(dtype)], ["B", *shape]))
        return name

    def output(self, name: str, tensor: str, dtype: Any, shape: tuple[int, ...]) -> None:
        """An output `[B, *shape]`."""
        self.nodes.append(helper.make_node("Identity", [tensor], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[np.dtype(dtype)], ["B", *shape]))

    def cast(self, tensor: str, dtype: Any) -> str:
        """The tensor as another type."""
        return self.add("Cast", tensor, to=TYPES[np.dtype(dtype)])

    def rows(self, tensor: str, *shape: int) -> str:
        """The tensor as `[B, *shape]`."""
        return self.add("Reshape", tensor, self.constant(np.array([0, *shape], np.int64)))

    def columns(self, tensor: str, begin: int, count: int) -> str:
        """Some columns of `[B, N]`."""
        ends = [self.constant(np.array([number], np.int64)) for number in (begin, begin + count, 1)]
        return self.add("Slice", tensor, *ends)

    def joined(self, tensors: list[str]) -> str:
        """Several `[B, N]` side by side."""
        return tensors[0] if len(tensors) == 1 else self.add("Concat", *tensors, axis=1)


def onnx_model(plan: Plan, title: str) -> Any:
    """The model."""
    graph = Graph()
    leaves = {}
    for field in plan.fields:
        leaves[field.name] = graph.input(field.name, obs_dtype(field), field.shape)
    if plan.sees_reward:
        graph.input("reward", np.float32, ())
    features = _features(graph, plan, leaves)
    for layer in plan.layers:
        features = _dense(graph, layer, features)
    if plan.cell is not None:
        features = _remembered(graph, plan.cell, features)
    outputs = _masked(graph, plan, leaves, _dense(graph, plan.head, features))
    noted = []
    for action, name in zip(plan.actions, action_names(plan.fields, plan.actions), strict=True):
        value, seen = _action(graph, action, outputs)
        dtype = np.int64 if action.is_integer else action_dtype(action)
        shape = () if action.is_int else action.shape
        graph.output(name, graph.rows(value, *shape), dtype, shape)
        noted.append(seen)
    graph.output("outputs", outputs, np.float32, (len(plan.head.bias),))
    if plan.sees_action:
        graph.output("next_before", graph.joined(noted), np.float32, (plan.previous_size - plan.sees_reward,))
    made = helper.make_graph(graph.nodes, "policy", graph.inputs, graph.outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="shoal", doc_string=title
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def action_dtype(action: ActionField) -> type[np.generic]:
    """The type of a continuous action's tensor."""
    return np.float64 if action.dtype == np.float64 else np.float32


def _features(graph: Graph, plan: Plan, leaves: dict[str, str]) -> str:
    """Everything that the first layer sees, `[B, D]`."""
    features = []
    if plan.encoding is not None:
        features += _encoded(graph, plan, plan.encoding, leaves)
    for image in plan.images:
        features.append(_seen(graph, image, leaves[image.field.name]))
    if plan.sees_action:
        features.append(graph.input("before", np.float32, (plan.previous_size - plan.sees_reward,)))
    if plan.sees_reward:
        features.append(graph.rows("reward", 1))
    return graph.joined(features)


def _encoded(graph: Graph, plan: Plan, encoding: Encoding, leaves: dict[str, str]) -> list[str]:
    """The features of the vector part."""
    parts, column = [], 0
    for field in plan.fields:
        if field.kind != "vector":
            continue
        part, first = graph.rows(leaves[field.name], field.size), encoding.first[column : column + field.size]
        if obs_dtype(field) != np.float32:
            if first.any():
                part = graph.add("Sub", part, graph.constant(first.astype(np.int64)))
            part = graph.cast(part, np.float32)
        parts.append(part)
        column += field.size
    raw = graph.joined(parts)
    x = raw
    if encoding.scale is not None:
        x = graph.add("Mul", x, graph.constant(encoding.scale))
        x = graph.add("Add", x, graph.constant(encoding.shift))
    if encoding.filter_shift is not None:
        x = graph.add("Sub", x, graph.constant(encoding.filter_shift))
        x = graph.add("Mul", x, graph.constant(encoding.filter_scale))
        x = graph.add("Min", x, graph.constant(encoding.filter_limit))
        x = graph.add("Max", x, graph.constant(-encoding.filter_limit))
    features = []
    if len(encoding.plain) == len(encoding.source):
        return [x]
    if len(encoding.plain):
        features.append(graph.add("Gather", x, graph.constant(encoding.plain), axis=1))
    for number, count, width, is_indicator in encoding.choices:
        value = graph.columns(raw, number, 1)
        # To the nearest value inside the space, and then towards zero, as the policy itself does.
        value = graph.add("Clip", value, graph.constant(np.float32(0)), graph.constant(np.float32(count - 1)))
        value = graph.cast(value, np.int64)
        if is_indicator:
            same = graph.add("Equal", value, graph.constant(np.arange(count)))
            features.append(graph.cast(same, np.float32))
        else:
            halved = graph.add("Div", value, graph.constant(2 ** np.arange(width)))
            features.append(graph.cast(graph.add("Mod", halved, graph.constant(np.int64(2))), np.float32))
    return features


def _seen(graph: Graph, image: Image, leaf: str) -> str:
    """The features of an image."""
    x = graph.cast(leaf, np.float32)
    shape, sides = image.field.shape, image.sides
    if len(shape) == 3 and image.axes[0] == 1 and sides[0] != 1:
        x = graph.add("Transpose", x, perm=[0, 3, 1, 2])
    x = graph.rows(x, *sides)
    x = graph.add("Sub", x, graph.constant(np.float32(image.least)))
    x = graph.add("Mul", x, graph.constant(np.float32(image.factor)))
    for layer in image.layers:
        left, right, top, bottom = layer.padding
        kernel, strides = list(layer.weight.shape[2:]), list(layer.stride)
        weight, bias = graph.constant(layer.weight), graph.constant(layer.bias)
        pads = [top, left, bottom, right]
        x = graph.add("Conv", x, weight, bias, kernel_shape=kernel, strides=strides, pads=pads)
        x = ACTIVATIONS[layer.activation](graph, x)
    return graph.rows(x, image.size)


def _dense(graph: Graph, layer: DenseLayer, x: str) -> str:
    x = graph.add("Gemm", x, graph.constant(layer.weight), graph.constant(layer.bias))
    if layer.layer_norm:
        ones = graph.constant(np.ones(len(layer.bias), np.float32))
        x = graph.add("LayerNormalization", x, ones, epsilon=1e-5)
    return ACTIVATIONS[layer.activation](graph, x)


def _remembered(graph: Graph, cell: Cell, x: str) -> str:
    """The step of an LSTM or a GRU."""
    size = cell.size
    hidden = graph.input("hidden", np.float32, (size,))
    by_x = graph.add("Gemm", x, graph.constant(cell.weight_x), graph.constant(cell.bias_x))
    by_h = graph.add("Gemm", hidden, graph.constant(cell.weight_h), graph.constant(cell.bias_h))
    if cell.kind == "lstm":
        memory = graph.input("memory", np.float32, (size,))
        gates = graph.add("Add", by_x, by_h)
        i, f, g, o = (graph.columns(gates, gate * size, size) for gate in range(4))
        kept = graph.add("Mul", graph.add("Sigmoid", f), memory)
        new = graph.add("Mul", graph.add("Sigmoid", i), graph.add("Tanh", g))
        memory_after = graph.add("Add", kept, new)
        after = graph.add("Mul", graph.add("Sigmoid", o), graph.add("Tanh", memory_after))
        graph.output("next_hidden", after, np.float32, (size,))
        graph.output("next_memory", memory_after, np.float32, (size,))
        return after
    r_x, z_x, n_x = (graph.columns(by_x, gate * size, size) for gate in range(3))
    r_h, z_h, n_h = (graph.columns(by_h, gate * size, size) for gate in range(3))
    r = graph.add("Sigmoid", graph.add("Add", r_x, r_h))
    z = graph.add("Sigmoid", graph.add("Add", z_x, z_h))
    n = graph.add("Tanh", graph.add("Add", n_x, graph.add("Mul", r, n_h)))
    change = graph.add("Mul", z, graph.add("Sub", hidden, n))
    after = graph.add("Add", n, change)
    graph.output("next_hidden", after, np.float32, (size,))
    return after


def _masked(graph: Graph, plan: Plan, leaves: dict[str, str], outputs: str) -> str:
    """The outputs, with those far down that the mask rules out."""
    mask = plan.mask
    if mask is None:
        return outputs
    flags: list[str] = []
    source: list[int] = []
    for field in plan.fields:
        if field.kind == "mask":
            flags.append(graph.cast(graph.rows(leaves[field.name], field.size), np.bool_))
            source += range(field.offset, field.offset + field.size)
    # Which flag each output asks; outputs that no flag is about ask one that is always set.
    places = np.full(len(plan.head.bias), len(source))
    places[mask.outputs] = [source.index(place) for place in mask.source.tolist()]
    joined = graph.joined(flags)
    always = graph.add("Or", graph.columns(joined, 0, 1), graph.constant(np.ones((1, 1), bool)))
    allowed = graph.add("Gather", graph.joined([joined, always]), graph.constant(places), axis=1)
    return graph.add("Where", allowed, outputs, graph.constant(np.float32(-1e30)))


def _action(graph: Graph, action: ActionField, outputs: str) -> tuple[str, str]:
    """The numbers `[B, size]` of one leaf of an action, and the features that the next step sees of them."""
    if action.kind == "categorical":
        return _choices(graph, action, outputs)
    numbers = graph.columns(outputs, action.output, action.size)
    if action.kind == "bernoulli":
        bits = graph.add("Greater", numbers, graph.constant(np.float32(0)))
        return graph.cast(bits, np.int64), graph.cast(bits, np.float32)
    if action.squashed.any():
        squashed = graph.constant(action.squashed)
        numbers = graph.add("Where", squashed, graph.add("Tanh", numbers), numbers)
    numbers = graph.add("Mul", numbers, graph.constant(action.scale))
    numbers = graph.add("Add", numbers, graph.constant(action.middle))
    dtype: Any = action_dtype(action)
    if action.is_integer:
        numbers, dtype = graph.add("Round", numbers), np.float64
    numbers = graph.cast(numbers, dtype)
    numbers = graph.add("Max", numbers, graph.constant(action.low.astype(dtype)))
    numbers = graph.add("Min", numbers, graph.constant(action.high.astype(dtype)))
    scale = np.where(action.scale, action.scale, 1).astype(dtype)
    seen = graph.add("Sub", numbers, graph.constant(action.middle.astype(dtype)))
    seen = graph.cast(graph.add("Div", seen, graph.constant(scale)), np.float32)
    return (graph.cast(numbers, np.int64) if action.is_integer else numbers), seen


def _choices(graph: Graph, action: ActionField, outputs: str) -> tuple[str, str]:
    picked, seen, output = [], [], action.output
    for count in action.choices:
        best = graph.add("ArgMax", graph.columns(outputs, output, count), axis=1, keepdims=1)
        picked.append(best)
        seen.append(graph.cast(graph.add("Equal", best, graph.constant(np.arange(count))), np.float32))
        output += count
    return graph.add("Add", graph.joined(picked), graph.constant(action.first)), graph.joined(seen)


def _silu(graph: Graph, x: str) -> str:
    return graph.add("Mul", x, graph.add("Sigmoid", x))


def _gelu(graph: Graph, x: str) -> str:
    cube = graph.add("Mul", x, graph.add("Mul", x, x))
    inner = graph.add("Add", x, graph.add("Mul", cube, graph.constant(np.float32(0.044715))))
    bent = graph.add("Tanh", graph.add("Mul", inner, graph.constant(np.float32(np.sqrt(2 / np.pi)))))
    half = graph.add("Mul", x, graph.constant(np.float32(0.5)))
    return graph.add("Mul", half, graph.add("Add", bent, graph.constant(np.float32(1))))


ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "linear": lambda _graph, x: x,
    "tanh": lambda graph, x: graph.add("Tanh", x),
    "relu": lambda graph, x: graph.add("Relu", x),
    "elu": lambda graph, x: graph.add("Elu", x),
    "silu": _silu,
    "sigmoid": lambda graph, x: graph.add("Sigmoid", x),
    "leaky_relu": lambda graph, x: graph.add("LeakyRelu", x, alpha=0.01),
    "gelu": _gelu,
    "softplus": lambda graph, x: graph.add("Softplus", x),
}


def state_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The memory that a graph is given and hands on as `next_NAME`, by name; zeros where an episode begins."""
    shapes: dict[str, tuple[int, ...]] = {}
    if plan.sees_action:
        shapes["before"] = (plan.previous_size - plan.sees_reward,)
    if plan.cell is not None:
        shapes["hidden"] = (plan.cell.size,)
        if plan.cell.kind == "lstm":
            shapes["memory"] = (plan.cell.size,)
    return shapes
