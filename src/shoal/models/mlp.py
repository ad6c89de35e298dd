"""The default network: a NumPy multilayer perceptron with hand-written derivatives.

Small networks in PyTorch are all dispatch overhead; here a call is a handful of BLAS operations into buffers that are
kept. Policy and value net have the same hidden sizes, so their layers are stacked: weights `[G, in, out]`, activations
`[G, B, out]`, with G = 2 for separate nets and G = 1 for a shared trunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ConfigError
from shoal.machine.memory import available_memory, bytes_text
from shoal.models.network import Inputs

Array = NDArray[np.float32]

MOST_USED_ROWS = 0.8  # share of rows with a gradient, above which picking them out costs more than it saves

ZEROS: Array = np.zeros(1 << 20, np.float32)  # to compare with; pages of zeros that nobody writes take no memory
ZEROS.flags.writeable = False

LARGE = 1 << 24  # parameters from which on the memory that is free is looked at
LEARNING_BYTES = 16  # for each parameter: itself, its gradient, Adam's two averages


def check_size(num_params: int) -> None:
    """Refuse a network that this machine's memory cannot hold, before it is tried."""
    if num_params < LARGE:
        return
    needed, free = num_params * LEARNING_BYTES, available_memory()
    if needed > free:
        raise ConfigError(
            f"config.model.fcnet_hiddens: a network of {num_params:,} parameters takes {bytes_text(needed)} of memory "
            f"with its gradient and its optimiser, and {bytes_text(free)} are free; use narrower layers"
        )


@dataclass(frozen=True)
class Activation:
    """A nonlinearity: `apply(z)` works in place; `slope(z, h, out)` is its derivative, from z only where `needs_z`."""

    apply: Callable[[Array], Array]
    slope: Callable[[Array, Array, Array], Array]
    needs_z: bool = False


def _tanh(z: Array) -> Array:
    # 2 / (1 + exp(-2 z)) - 1: a third faster than np.tanh in float32, and within 2e-7 of it; overflow ends at -1.
    np.multiply(z, -2, out=z)
    np.exp(z, out=z)
    z += 1
    np.divide(2, z, out=z)
    z -= 1
    return z


def _sigmoid(z: Array) -> Array:
    np.negative(z, out=z)
    np.exp(z, out=z)
    z += 1
    np.divide(1, z, out=z)
    return z


def _silu(z: Array) -> Array:
    z *= _sigmoid(z.copy())
    return z


def _silu_slope(z: Array, h: Array, out: Array) -> Array:
    s = _sigmoid(z.copy())
    np.add(s, h * (1 - s), out=out)
    return out


def _gelu_parts(z: Array) -> tuple[Array, Array]:
    # The tanh form, as in the original paper; torch's `approximate="tanh"`.
    c = np.float32(np.sqrt(2 / np.pi))
    t = np.tanh(c * (z + np.float32(0.044715) * z**3))
    return t, c * (1 + np.float32(3 * 0.044715) * z * z)


def _gelu(z: Array) -> Array:
    t, _ = _gelu_parts(z)
    z *= np.float32(0.5) * (1 + t)
    return z


def _gelu_slope(z: Array, h: Array, out: Array) -> Array:
    del h
    t, inner = _gelu_parts(z)
    np.add(np.float32(0.5) * (1 + t), np.float32(0.5) * z * (1 - t * t) * inner, out=out)
    return out


def _tanh_slope(z: Array, h: Array, out: Array) -> Array:
    del z
    np.multiply(h, h, out=out)
    np.subtract(1, out, out=out)
    return out


def _relu(z: Array) -> Array:
    # The larger of two arrays takes a quarter of the time of the larger of an array and a number, and is the same.
    if z.size > len(ZEROS):
        return np.maximum(z, 0, out=z)
    return np.maximum(z, ZEROS[: z.size].reshape(z.shape), out=z)


def _elu(z: Array) -> Array:
    np.copyto(z, np.expm1(np.minimum(z, 0)), where=z < 0)
    return z


ACTIVATIONS: dict[str, Activation] = {
    "linear": Activation(lambda z: z, lambda _z, _h, out: _fill(out, 1)),
    "tanh": Activation(_tanh, _tanh_slope),
    "relu": Activation(_relu, lambda _z, h, out: np.greater(h, 0, out=out)),
    "elu": Activation(_elu, lambda _z, h, out: np.add(np.minimum(h, 0), 1, out=out)),
    "silu": Activation(_silu, _silu_slope, needs_z=True),
    "sigmoid": Activation(_sigmoid, lambda _z, h, out: np.multiply(h, 1 - h, out=out)),
    "leaky_relu": Activation(
        lambda z: np.maximum(z, np.float32(0.01) * z, out=z),
        lambda _z, h, out: np.add(np.float32(0.99) * (h > 0), np.float32(0.01), out=out),
    ),
    "gelu": Activation(_gelu, _gelu_slope, needs_z=True),
    "softplus": Activation(
        lambda z: np.logaddexp(z, np.float32(0), out=z), lambda _z, h, out: np.subtract(1, np.exp(-h), out=out)
    ),
}


def _fill(out: Array, value: float) -> Array:
    out.fill(value)
    return out


@dataclass(frozen=True)
class StackedNets:
    """Some of the stacked nets: views into parameters and gradient, one pair for each layer."""

    weights: list[Array]  # [g, in, out]
    biases: list[Array]  # [g, 1, out]
    d_weights: list[Array]
    d_biases: list[Array]


@dataclass
class MLPTape:
    """What `forward` keeps: the input, each layer's activations and slopes `[g, B, H]`, and room to work in."""

    nets: StackedNets
    x: Array
    hidden: list[Array]
    slopes: list[Array]
    grads: list[Array]
    ones: Array  # [1, B]
    z: list[Array] = field(default_factory=list)
    scales: list[Array] = field(default_factory=list)  # [g, B, 1], one over the deviation that a layer was divided by
    normal: list[Array] = field(default_factory=list)  # [g, B, H], what became of it
    room: list[Array] = field(default_factory=list)  # [B, H], for `jvp`
    compiled: Any = None  # the same as `kernel.c` sees it, where that made the pass
    has_slopes: bool = True


class MLP:
    """Keeps the `Network` contract for one feature vector per observation."""

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        hiddens: Sequence[int] = (64, 64),
        activation: str = "tanh",
        share_layers: bool = False,
        free_outputs: NDArray[np.int64] | None = None,
        seed: int = 0,
        layer_norm: bool = False,
    ) -> None:
        """With `layer_norm`, each hidden layer has mean 0 and deviation 1 over its width before its activation."""
        self.layer_norm = layer_norm
        self.num_features, self.num_outputs = num_features, num_outputs
        self.hiddens = tuple(hiddens)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]
        self.groups = 1 if share_layers else 2
        free: NDArray[np.int64] = np.zeros(0, np.int64)
        if free_outputs is not None:
            free = free_outputs
        self.free_outputs = free
        self.computed_outputs = np.setdiff1d(np.arange(num_outputs), free)
        self._tapes: dict[tuple[int, int], MLPTape] = {}
        self._act_buffers: dict[int, list[Array]] = {}

        self._shapes: dict[str, tuple[int, ...]] = {}
        sizes = (num_features, *self.hiddens)
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            self._shapes[f"hidden{layer}.weight"] = (self.groups, fan_in, fan_out)
            self._shapes[f"hidden{layer}.bias"] = (self.groups, fan_out)
        self._shapes["policy.weight"] = (sizes[-1], len(self.computed_outputs))
        self._shapes["policy.bias"] = (len(self.computed_outputs),)
        self._shapes["value.weight"] = (sizes[-1], 1)
        self._shapes["value.bias"] = (1,)
        if len(free):
            self._shapes["log_std"] = (len(free),)
        total = sum(math.prod(shape) for shape in self._shapes.values())
        check_size(total)
        self.params, self._gradient = self._empty(total), self._empty(total)
        self.params.fill(0)
        self._gradient.fill(0)
        self._p = self.views(self.params)
        self._g = self.views(self._gradient)
        self._hidden = []
        for layer in range(len(self.hiddens)):
            self._hidden.append((self._p[f"hidden{layer}.weight"], self._p[f"hidden{layer}.bias"]))
        self._both, self._policy = self._nets(0, self.groups), self._nets(0, 1)
        self._value = self._nets(self.groups - 1, self.groups)
        self.initial_state: Inputs = ()
        self.value_params = np.zeros(total, bool)
        for name, view in self.views(self.value_params).items():
            if name.startswith("value."):
                view[:] = True
            elif name.startswith("hidden") and self.groups == 2:
                view[1] = True
        self._initialise(np.random.default_rng(seed))

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = (self.num_features, self.num_outputs, self.hiddens, self.activation_name)
        return MLP, (*sizes, self.groups == 1, self.free_outputs, 0, self.layer_norm), self.params

    def __setstate__(self, params: Array) -> None:
        self.params[:] = params

    def sync(self) -> None:
        """Nothing to do: the layers are views into `params`."""

    def act(self, inputs: Inputs) -> Array:
        """See `Network`."""
        return self._outputs(self._last_hidden(inputs[0], 0))

    def act_with(self, inputs: Inputs, params: Array) -> Array:
        """See `Network`."""
        views = self.views(params)
        x = inputs[0][:, None, :]
        with np.errstate(over="ignore"):
            for layer in range(len(self.hiddens)):
                weight, bias = views[f"hidden{layer}.weight"], views[f"hidden{layer}.bias"]
                x = x @ weight[:, 0] + bias[:, :1]
                if self.layer_norm:
                    _normalize(x)
                x = self.activation.apply(x)
        computed = x @ views["policy.weight"] + views["policy.bias"][:, None]
        return self._with_free(computed[:, 0], views)

    def step(self, inputs: Inputs, state: Inputs) -> tuple[Array, Inputs]:
        """See `Network`; nothing is remembered."""
        return self.act(inputs), state

    def values(self, inputs: Inputs) -> Array:
        """See `Network`."""
        return self._top_values(self._last_hidden(inputs[0], self.groups - 1))

    def forward(self, inputs: Inputs) -> tuple[Array, Array, MLPTape]:
        """See `Network`."""
        top, tape = self._taped(inputs[0], self._both)
        return self._outputs(top[0]), self._top_values(top[-1]), tape

    def forward_policy(self, inputs: Inputs) -> tuple[Array, MLPTape]:
        """See `Network`."""
        top, tape = self._taped(inputs[0], self._policy)
        return self._outputs(top[0]), tape

    def forward_value(self, inputs: Inputs) -> tuple[Array, MLPTape]:
        """See `Network`."""
        top, tape = self._taped(inputs[0], self._value)
        return self._top_values(top[-1]), tape

    def vjp(self, tape: MLPTape, d_outputs: Array | None, d_values: Array | None, again: bool = False) -> Array:
        """See `Network`."""
        del again  # a tape is never used up
        g, p, nets, ones = self._g, self._p, tape.nets, tape.ones
        assert (d_outputs is None) == (nets is self._value)
        assert (d_values is None) == (nets is self._policy)
        top = self._top(tape)
        if nets is not self._both:
            self._gradient.fill(0)
        d_top = tape.grads[-1] if self.hiddens else None
        if d_outputs is not None:
            d_policy = d_outputs
            if len(self.free_outputs):
                np.sum(d_outputs[:, self.free_outputs], axis=0, out=g["log_std"])
                d_policy = d_outputs[:, self.computed_outputs]
            np.matmul(top[0].T, d_policy, out=g["policy.weight"])
            np.matmul(ones[0], d_policy, out=g["policy.bias"])  # BLAS sums faster than np.sum
            if d_top is not None and d_policy.shape[1] == 1:
                np.dot(d_policy, p["policy.weight"].T, out=d_top[0])  # matmul leaves BLAS where one side is one row
            elif d_top is not None:
                np.matmul(d_policy, p["policy.weight"].T, out=d_top[0])
        if d_values is not None:
            d_value = d_values[:, None]
            np.matmul(top[-1].T, d_value, out=g["value.weight"])
            g["value.bias"][0] = d_values.sum()
            if d_outputs is None and self.groups == 1:
                return self._gradient  # the layers below are the policy's
            if d_top is not None and self.groups == 2:
                np.dot(d_value, p["value.weight"].T, out=d_top[-1])  # not matmul, as above
            elif d_top is not None:
                d_top[0] += d_value * p["value.weight"].T
        for layer in range(len(self.hiddens) - 1, -1, -1):
            dz = tape.grads[layer]
            dz *= tape.slopes[layer]
            if self.layer_norm:
                _normalize_slope(dz, tape.scales[layer], tape.normal[layer])
            np.matmul(ones, dz, out=nets.d_biases[layer])
            if layer:
                np.matmul(tape.hidden[layer - 1].transpose(0, 2, 1), dz, out=nets.d_weights[layer])
                np.matmul(dz, nets.weights[layer].transpose(0, 2, 1), out=tape.grads[layer - 1])
            else:
                np.matmul(tape.x.T, dz, out=nets.d_weights[layer])
        return self._gradient

    def forward_inputs(self, inputs: Inputs) -> tuple[Array, MLPTape]:
        """See `Network`."""
        return self.forward_policy(inputs)

    def vjp_inputs(self, tape: MLPTape, d_outputs: Array) -> Array:
        """See `Network`; where many rows are zero, the others are gone back through alone."""
        assert tape.nets is self._policy
        if len(self.free_outputs):
            d_outputs = d_outputs[:, self.computed_outputs]
        count = len(d_outputs)
        used = np.flatnonzero(d_outputs.any(axis=1))
        few = len(used) < MOST_USED_ROWS * count
        rows: slice | NDArray[np.int64] = slice(None)
        if few:
            rows = used
        below: Array = np.dot(d_outputs[rows], self._p["policy.weight"].T)
        for layer in range(len(self.hiddens) - 1, -1, -1):
            below *= tape.slopes[layer][0, rows]
            if self.layer_norm:
                _normalize_slope(below, tape.scales[layer][0, rows], tape.normal[layer][0, rows])
            below = np.matmul(below, tape.nets.weights[layer][0].T)
        if not few:
            return below
        gradient = np.zeros((count, below.shape[1]), np.float32)
        gradient[used] = below
        return gradient

    def jvp(self, tape: MLPTape, tangent: Array) -> Array:
        """See `Network`."""
        assert tape.nets is not self._value
        v, p = self.views(np.ascontiguousarray(tangent, np.float32)), self._p
        if not tape.room:
            tape.room.extend(np.empty_like(h[0]) for h in tape.hidden)
        dot: Array | None = None  # the input does not move
        below: Array = tape.x
        for layer, (h, room) in enumerate(zip(tape.hidden, tape.room, strict=True)):
            moved = np.matmul(below, v[f"hidden{layer}.weight"][0], out=tape.grads[layer][0])
            moved += v[f"hidden{layer}.bias"][0]
            if dot is not None:
                moved += np.matmul(dot, p[f"hidden{layer}.weight"][0], out=room)
            if self.layer_norm:
                _normalize_slope(moved, tape.scales[layer][0], tape.normal[layer][0])
            moved *= tape.slopes[layer][0]
            dot, below = moved, h[0]
        dot_policy = below @ v["policy.weight"] + v["policy.bias"]
        if dot is not None:
            dot_policy += dot @ p["policy.weight"]
        return self._with_free(dot_policy, v)

    def named_params(self) -> dict[str, Array]:
        """Each net's layers apart, as a reader expects them."""
        named: dict[str, Array] = {}
        for name, view in self._p.items():
            if not name.startswith("hidden"):
                named[name] = view
            elif self.groups == 1:
                named[f"shared.{name}"] = view[0]
            else:
                named[f"policy.{name}"], named[f"value.{name}"] = view[0], view[1]
        return named

    def summary(self) -> str:
        """See `Network`."""
        return table_of(
            f"NumPy MLP, {self.activation_name}{', layer norm' if self.layer_norm else ''}, "
            f"{self.num_features} features in, "
            f"{self.num_outputs} outputs and a value out",
            self.named_params(),
        )

    def _nets(self, first: int, end: int) -> StackedNets:
        nets = StackedNets([], [], [], [])
        for layer in range(len(self.hiddens)):
            weight, bias = f"hidden{layer}.weight", f"hidden{layer}.bias"
            nets.weights.append(self._p[weight][first:end])
            nets.biases.append(self._p[bias][first:end, None, :])
            nets.d_weights.append(self._g[weight][first:end])
            nets.d_biases.append(self._g[bias][first:end, None, :])
        return nets

    def views(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Each layer's part of one flat vector `[P]`, or of several `[B, P]`."""
        views, offset = {}, 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            views[name] = flat[..., offset : offset + size].reshape(*flat.shape[:-1], *shape)
            offset += size
        return views

    def _initialise(self, rng: np.random.Generator) -> None:
        """Orthogonal weights: gain sqrt(2) in hidden layers, 0.01 for the policy (near uniform), 1 for the value."""
        for name, view in self._p.items():
            if name.startswith("hidden") and name.endswith("weight"):
                for group in view:
                    group[:] = orthogonal(rng, group.shape, np.sqrt(2))
        self._p["policy.weight"][:] = orthogonal(rng, self._shapes["policy.weight"], 0.01)
        self._p["value.weight"][:] = orthogonal(rng, self._shapes["value.weight"], 1.0)

    def _last_hidden(self, x: Array, group: int) -> Array:
        """The top of one net's hidden layers, in buffers that are kept for small batches."""
        buffers = self._act_buffers.get(len(x))
        if buffers is None:
            buffers = [np.empty((len(x), size), np.float32) for size in self.hiddens]
            if len(self._act_buffers) < 16 and len(x) <= 1024:
                self._act_buffers[len(x)] = buffers
        with np.errstate(over="ignore"):
            for layer, h in enumerate(buffers):
                weight, bias = self._hidden[layer]
                np.matmul(x, weight[group], out=h)
                h += bias[group]
                if self.layer_norm:
                    _normalize(h)
                x = self.activation.apply(h)
        return x

    def _taped(self, x: Array, nets: StackedNets) -> tuple[Array, MLPTape]:
        """The top of some nets' hidden layers `[g, B, H]`, and what their derivatives need."""
        tape = self._tape(len(x), nets)
        tape.x = x
        below: Array = x
        keep_z = self.activation.needs_z
        with np.errstate(over="ignore"):
            for layer, h in enumerate(tape.hidden):
                np.matmul(below, nets.weights[layer], out=h)
                h += nets.biases[layer]
                if self.layer_norm:
                    tape.scales[layer] = _normalize(h)
                    np.copyto(tape.normal[layer], h)
                if keep_z:
                    np.copyto(tape.z[layer], h)
                self.activation.apply(h)
                self.activation.slope(tape.z[layer] if keep_z else h, h, tape.slopes[layer])
                below = h
        return self._top(tape), tape

    def _top(self, tape: MLPTape) -> Array:
        if not self.hiddens:
            return tape.x[None]
        return tape.hidden[-1]

    def _top_values(self, top: Array) -> Array:
        values: Array = (top @ self._p["value.weight"])[:, 0] + self._p["value.bias"]
        return values

    def _outputs(self, top: Array) -> Array:
        return self._with_free(top @ self._p["policy.weight"] + self._p["policy.bias"], self._p)

    def _with_free(self, computed: Array, views: dict[str, Array]) -> Array:
        if not len(self.free_outputs):
            return computed
        out = np.empty((len(computed), self.num_outputs), np.float32)
        out[:, self.computed_outputs] = computed
        out[:, self.free_outputs] = views["log_std"]
        return out

    def _empty(self, *shape: int) -> Array:
        """An array of any numbers."""
        return np.empty(shape, np.float32)

    def _tape(self, size: int, nets: StackedNets) -> MLPTape:
        tape = self._tapes.get((size, id(nets)))
        if tape is None:

            def rooms() -> list[Array]:
                return [self._empty(w.shape[0], size, w.shape[2]) for w in nets.weights]

            tape = MLPTape(
                nets,
                np.empty((0, 0), np.float32),
                rooms(),
                rooms(),
                rooms(),
                np.ones((1, size), np.float32),
                rooms() if self.activation.needs_z else [],
            )
            if self.layer_norm:
                tape.scales, tape.normal = rooms(), rooms()
            if len(self._tapes) > 8:
                self._tapes.clear()
            self._tapes[size, id(nets)] = tape
        return tape


def _normalize(h: Array) -> Array:
    """Give each row mean 0 and deviation 1 in place; returns one over the deviations, `[..., 1]`."""
    h -= h.mean(axis=-1, keepdims=True)
    scale: Array = 1 / np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + np.float32(1e-5))
    h *= scale
    return scale


def _normalize_slope(d: Array, scale: Array, normal: Array) -> None:
    """Carry a derivative through `_normalize` in place, forwards or backwards: its matrix is symmetric."""
    along = np.mean(d * normal, axis=-1, keepdims=True)
    d -= d.mean(axis=-1, keepdims=True)
    d -= along * normal
    d *= scale


def orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> NDArray[Any]:
    """A matrix with orthonormal rows or columns, times `gain`."""
    rows, columns = shape
    if not rows or not columns:
        return np.zeros(shape)
    flat = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(flat)
    q *= np.sign(np.diag(r))
    if rows < columns:
        q = q.T
    return gain * q


def table_of(title: str, params: dict[str, Array]) -> str:
    """A table of parameters with their shapes and counts."""
    rows = [("parameter", "shape", "count")]
    total = 0
    for name, view in params.items():
        rows.append((name, " x ".join(map(str, view.shape)), f"{view.size:,}"))
        total += view.size
    rows.append(("total", "", f"{total:,}"))
    width = max(len(name) for name, _, _ in rows)
    shape_width = max(len(shape) for _, shape, _ in rows)
    lines = [title]
    for name, shape, count in rows:
        lines.append(f"{name:<{width}}  {shape:<{shape_width}}  {count:>9}")
    return "\n".join(lines)
