"""Several NumPy MLPs of one shape in one pass: parameters `[S, P]`, one row for each of them.

A call of NumPy costs more than what a small network computes in it, so S networks take little longer than one. Each
network's own matrices are multiplied by themselves, in the order in which `MLP` does it: the numbers are the same, to
the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.models.mlp import MLP, Array
from shoal.models.network import Network


def why_not_stacked(network: Network) -> str | None:
    """What keeps a network from being stacked with others of its shape, if anything does."""
    if type(network) is not MLP:
        return "their network is no plain NumPy one"
    if not network.hiddens:
        return "their network has no hidden layers"
    if network.layer_norm:
        return "their network has a layer norm"
    return None


@dataclass
class StackedTape:
    """What `forward` keeps: the inputs `[S, B, D]`, each layer's activations `[S, G, B, H]`, and room to work in."""

    x: Array
    hidden: list[Array]
    grads: list[Array]
    slopes: list[Array]  # the same room for all layers of a width: slopes are wanted once
    ones: Array  # [1, B]
    z: list[Array] = field(default_factory=list)


class StackedMLP:
    """The passes of `MLP` for S networks at once, on a copy of their parameters: see `load` and `store`."""

    def __init__(self, networks: Sequence[MLP]) -> None:
        self._networks = list(networks)
        first = self._networks[0]
        self._first, self._count = first, len(self._networks)
        shape = self._count, len(first.params)
        self.params: Array = np.empty(shape, np.float32)
        self.gradient: Array = np.zeros(shape, np.float32)
        self._p, self._g = first.views(self.params), first.views(self.gradient)
        self._hidden, self._d_hidden = self._layers(self._p), self._layers(self._g)
        self._tapes: dict[int, StackedTape] = {}
        self._act_buffers: list[Array] = []
        self.load()

    def load(self) -> None:
        """Take the networks' parameters."""
        for row, network in zip(self.params, self._networks, strict=True):
            row[:] = network.params

    def store(self) -> None:
        """Give the networks the parameters that they have here."""
        for row, network in zip(self.params, self._networks, strict=True):
            network.params[:] = row
            network.sync()

    def act(self, x: Array) -> Array:
        """The outputs `[S, B, K]` for inputs `[S, B, D]`."""
        rows = x.shape[1]
        if not self._act_buffers or self._act_buffers[0].shape[1] != rows:
            self._act_buffers = [np.empty((self._count, rows, size), np.float32) for size in self._first.hiddens]
        with np.errstate(over="ignore"):
            for (weight, bias), h in zip(self._hidden, self._act_buffers, strict=True):
                np.matmul(x, weight[:, 0], out=h)
                h += bias[:, 0]
                x = self._first.activation.apply(h)
        return self._outputs(x)

    def forward(self, x: Array) -> tuple[Array, Array, StackedTape]:
        """Outputs `[S, B, K]` and values `[S, B]` for inputs `[S, B, D]`."""
        tape = self._tape(x.shape[1])
        tape.x = x
        below = x[:, None]
        activation = self._first.activation
        with np.errstate(over="ignore"):
            for layer, h in enumerate(tape.hidden):
                weight, bias = self._hidden[layer]
                np.matmul(below, weight, out=h)
                h += bias
                if activation.needs_z:
                    np.copyto(tape.z[layer], h)
                activation.apply(h)
                below = h
        top = tape.hidden[-1]
        values = (top[:, -1] @ self._p["value.weight"])[:, :, 0] + self._p["value.bias"]
        return self._outputs(top[:, 0]), values, tape

    def vjp(self, tape: StackedTape, d_outputs: Array, d_values: Array) -> Array:
        """The gradients `[S, P]` of `sum(d_outputs * outputs) + sum(d_values * values)` of each network."""
        g, p, ones, activation = self._g, self._p, tape.ones, self._first.activation
        top, d_top = tape.hidden[-1], tape.grads[-1]
        d_policy = d_outputs
        if len(self._first.free_outputs):
            np.sum(d_outputs[:, :, self._first.free_outputs], axis=1, out=g["log_std"])
            d_policy = d_outputs[:, :, self._first.computed_outputs]
        np.matmul(top[:, 0].swapaxes(1, 2), d_policy, out=g["policy.weight"])
        np.matmul(ones[0], d_policy, out=g["policy.bias"])
        _times_row(d_policy, p["policy.weight"], d_top[:, 0])
        d_value = d_values[:, :, None]
        np.matmul(top[:, -1].swapaxes(1, 2), d_value, out=g["value.weight"])
        g["value.bias"][:, 0] = d_values.sum(axis=1)
        if self._first.groups == 2:
            _times_row(d_value, p["value.weight"], d_top[:, -1])
        else:
            d_top[:, 0] += d_value * p["value.weight"].swapaxes(1, 2)
        for layer in range(len(tape.hidden) - 1, -1, -1):
            dz, h, slopes = tape.grads[layer], tape.hidden[layer], tape.slopes[layer]
            activation.slope(tape.z[layer] if activation.needs_z else h, h, slopes)
            dz *= slopes
            d_weight, d_bias = self._d_hidden[layer]
            np.matmul(ones, dz, out=d_bias)
            if layer:
                np.matmul(tape.hidden[layer - 1].swapaxes(2, 3), dz, out=d_weight)
                np.matmul(dz, self._hidden[layer][0].swapaxes(2, 3), out=tape.grads[layer - 1])
            else:
                np.matmul(tape.x[:, None].swapaxes(2, 3), dz, out=d_weight)
        return self.gradient

    def _outputs(self, top: Array) -> Array:
        computed = top @ self._p["policy.weight"] + self._p["policy.bias"][:, None]
        if not len(self._first.free_outputs):
            return np.asarray(computed)
        out = np.empty((*computed.shape[:2], self._first.num_outputs), np.float32)
        out[:, :, self._first.computed_outputs] = computed
        out[:, :, self._first.free_outputs] = self._p["log_std"][:, None]
        return out

    def _layers(self, views: dict[str, Array]) -> list[tuple[Array, Array]]:
        """Each hidden layer's weights `[S, G, in, out]` and biases `[S, G, 1, out]`."""
        layers = []
        for layer in range(len(self._first.hiddens)):
            layers.append((views[f"hidden{layer}.weight"], views[f"hidden{layer}.bias"][:, :, None]))
        return layers

    def _tape(self, size: int) -> StackedTape:
        tape = self._tapes.get(size)
        if tape is not None:
            return tape

        def rooms() -> list[Array]:
            lead = (self._count, self._first.groups, size)
            return [np.empty((*lead, width), np.float32) for width in self._first.hiddens]

        shared = {room.shape: room for room in rooms()}
        slopes = [shared[room.shape] for room in rooms()]
        tape = StackedTape(np.empty((0, 0, 0), np.float32), rooms(), rooms(), slopes, np.ones((1, size), np.float32))
        if self._first.activation.needs_z:
            tape.z = rooms()
        if len(self._tapes) > 8:
            self._tapes.clear()
        self._tapes[size] = tape
        return tape


def _times_row(left: Array, weight: Array, out: Array) -> None:
    """`left` `[S, B, K]` times the transposed `weight` `[S, H, K]`."""
    if left.shape[2] == 1:
        np.multiply(left, weight.swapaxes(1, 2), out=out)  # one product for each number: nothing is summed
    else:
        np.matmul(left, weight.swapaxes(1, 2), out=out)
