"""The NumPy MLP with its passes in compiled C (`kernel.c`): the same parameters, and the same numbers up to rounding.

What is rare (`jvp`, `act_with`) stays NumPy's, on the same tape.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ConfigError
from shoal.models.kernel import (
    ACTIVATIONS,
    BOTH,
    POLICY,
    VALUE,
    Kernel,
    KernelUse,
    NetStruct,
    TapeStruct,
    address,
    check_close,
    load_kernel,
)
from shoal.models.masked import MaskedNetwork
from shoal.models.mlp import MLP, Array, MLPTape, StackedNets
from shoal.models.network import Inputs, Network

KernelChoice = Literal["numpy", "compiled", "auto"]

WIDEST = 512  # of the layers; beyond, matrices leave the caches and BLAS is faster
LINE = 16  # numbers in 64 bytes, a line of the cache
MOST_PASSES = 32  # whose room is kept, one for each number of rows


def mlp_for(choice: KernelChoice, *shape: Any, **more: Any) -> tuple[MLP, KernelUse | None]:
    """An MLP of this shape with the kernel that the configuration asks for, and what became of that.

    `compiled` is refused with a ConfigError where it is not possible, `auto` is NumPy there.
    """
    network = MLP(*shape, **more)
    if choice == "numpy":
        return network, None
    reason = why_not(network)
    fits = reason is None
    if fits:
        try:
            fast = CompiledMLP(load_kernel(), *shape, **more)
            fast.check()
            return fast, KernelUse(fast.kernel.digest)
        except OSError as error:
            reason = str(error)
    if choice == "compiled":
        raise ConfigError(f"config.kernel: compiled is not possible: {reason}; set kernel: numpy, or auto")
    return network, KernelUse(None, reason or "", has_failed=fits)


def why_not(network: MLP) -> str | None:
    """What of a network the kernel does not know, if anything."""
    if not network.hiddens:
        return "the network has no hidden layers"
    if network.activation_name not in ACTIVATIONS:
        return f"the kernel knows the activations {', '.join(ACTIVATIONS)}, and this is {network.activation_name}"
    if max(network.hiddens) > WIDEST:
        return f"the kernel is for layers of at most {WIDEST}, and this network has one of {max(network.hiddens)}"
    if network.layer_norm:
        return "the kernel knows no layer norm (high_update_ratio)"
    return None


def kernel_of(network: Network) -> Kernel | None:
    """The kernel that a network computes with, if it has one."""
    if isinstance(network, MaskedNetwork):
        return kernel_of(network.network)
    if isinstance(network, CompiledMLP):
        return network.kernel
    return None


@dataclass
class CompiledPass:
    """What the kernel is told of a pass: its structure, and the arrays that this points to."""

    struct: TapeStruct
    hidden: list[Array]
    grads: list[Array]
    computed: Array  # [B, computed], room for the gradient of those outputs
    pointers: list[NDArray[np.uint64]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: int, parts: int, hidden: list[Array], grads: list[Array], num_computed: int) -> CompiledPass:
        """Of so many rows, with the activations and their gradients `[g, B, H]` in given arrays."""
        pointers = []
        for arrays in (hidden, grads):
            pointers.append(np.array([address(array) for array in arrays], np.uint64))
        struct = TapeStruct(rows, parts, *map(address, pointers))
        return cls(struct, hidden, grads, np.empty((rows, num_computed), np.float32), pointers)

    @property
    def address(self) -> int:
        """Where its structure is."""
        return ctypes.addressof(self.struct)


class CompiledMLP(MLP):
    """Keeps the `Network` contract as `MLP` does; a row depends on no other row, to the last bit."""

    def __init__(self, kernel: Kernel, *shape: Any, **more: Any) -> None:
        super().__init__(*shape, **more)
        self.kernel = kernel
        self._passes: dict[tuple[int, int], CompiledPass] = {}
        self._widths: NDArray[np.int64] = np.array(self.hiddens, np.int64)
        num_computed = len(self.computed_outputs)
        sizes = [self.hiddens[-1] * num_computed]
        for fan_in, fan_out in pairwise((self.num_features, *self.hiddens)):
            sizes.append(fan_in * fan_out)
        self._room = self._empty(max(sizes) + self.hiddens[-1])
        self._net = NetStruct(
            self.num_features,
            len(self.hiddens),
            self.groups,
            ACTIVATIONS[self.activation_name],
            address(self._widths),
            num_computed,
            len(self.free_outputs),
            address(self.computed_outputs),
            address(self.free_outputs),
            address(self._room),
        )
        self._net_address = ctypes.addressof(self._net)
        self._params_address, self._gradient_address = address(self.params), address(self._gradient)
        self._parts = {id(self._policy): POLICY, id(self._value): VALUE, id(self._both): BOTH}

    def act(self, inputs: Inputs) -> Array:
        """See `Network`."""
        x = _plain(inputs[0])
        outputs = np.empty((len(x), self.num_outputs), np.float32)
        self._run(self._pass(len(x), POLICY), x, outputs, None)
        return outputs

    def values(self, inputs: Inputs) -> Array:
        """See `Network`."""
        x = _plain(inputs[0])
        values = np.empty(len(x), np.float32)
        self._run(self._pass(len(x), VALUE), x, None, values)
        return values

    def forward(self, inputs: Inputs) -> tuple[Array, Array, MLPTape]:
        """See `Network`."""
        outputs, values, tape = self._forward(inputs, self._both)
        assert outputs is not None
        assert values is not None
        return outputs, values, tape

    def forward_policy(self, inputs: Inputs) -> tuple[Array, MLPTape]:
        """See `Network`."""
        outputs, _, tape = self._forward(inputs, self._policy)
        assert outputs is not None
        return outputs, tape

    def forward_value(self, inputs: Inputs) -> tuple[Array, MLPTape]:
        """See `Network`."""
        _, values, tape = self._forward(inputs, self._value)
        assert values is not None
        return values, tape

    def vjp(self, tape: MLPTape, d_outputs: Array | None, d_values: Array | None, again: bool = False) -> Array:
        """See `Network`."""
        del again  # a tape is never used up
        parts = self._parts[id(tape.nets)]
        assert (d_outputs is not None) == bool(parts & POLICY)
        assert (d_values is not None) == bool(parts & VALUE)
        if parts != BOTH:
            self._gradient.fill(0)
        taped, d_outputs, d_values = tape.compiled, _plain_or_none(d_outputs), _plain_or_none(d_values)
        self.kernel.backward(
            self._net_address,
            self._params_address,
            self._gradient_address,
            taped.address,
            address(tape.x),
            _address_or_none(d_outputs),
            _address_or_none(d_values),
            address(taped.computed),
        )
        return self._gradient

    def vjp_inputs(self, tape: MLPTape, d_outputs: Array) -> Array:
        """See `Network`."""
        assert tape.nets is self._policy
        taped, d_outputs = tape.compiled, _plain(d_outputs)
        gradient = np.empty((len(d_outputs), self.num_features), np.float32)
        self.kernel.backward_inputs(
            self._net_address,
            self._params_address,
            taped.address,
            address(d_outputs),
            address(taped.computed),
            address(gradient),
        )
        return gradient

    def jvp(self, tape: MLPTape, tangent: Array) -> Array:
        """See `Network`."""
        self._find_slopes(tape)
        return super().jvp(tape, tangent)

    def summary(self) -> str:
        """See `Network`."""
        return super().summary().replace("NumPy MLP", "compiled MLP", 1)

    def check(self) -> None:
        """Hold the kernel against NumPy with this network's own shape; an OSError says where they differ."""
        rng = np.random.default_rng(0)
        kept = self.params.copy()
        self.params += rng.normal(0, 0.1, len(kept)).astype(np.float32)  # biases are zero at the start
        for rows in (1, 45):
            x = rng.normal(0, 1, (rows, self.num_features)).astype(np.float32)
            d_outputs = rng.normal(0, 1, (rows, self.num_outputs)).astype(np.float32)
            d_values = rng.normal(0, 1, rows).astype(np.float32)
            outputs, values, tape = super().forward((x,))
            gradient = super().vjp(tape, d_outputs, d_values).copy()
            self._gradient.fill(np.nan)  # what the kernel leaves out must not pass for NumPy's
            found, found_values, tape = self.forward((x,))
            check_close("outputs", found, outputs)
            check_close("values", found_values, values)
            check_close("gradients", self.vjp(tape, d_outputs, d_values), gradient)
            check_close("actions", self.act((x,)), outputs)
            check_close("values alone", self.values((x,)), values)
            d_outputs[::2] = 0
            expected = super().vjp_inputs(super().forward_policy((x,))[1], d_outputs)
            found = self.vjp_inputs(self.forward_policy((x,))[1], d_outputs)
            check_close("derivatives by the inputs", found, expected)
        self.params[:] = kept

    def _forward(self, inputs: Inputs, nets: StackedNets) -> tuple[Array | None, Array | None, MLPTape]:
        x = _plain(inputs[0])
        tape = self._tape(len(x), nets)
        parts = self._parts[id(nets)]
        if tape.compiled is None:
            tape.compiled = CompiledPass.of(len(x), parts, tape.hidden, tape.grads, len(self.computed_outputs))
        tape.x, tape.has_slopes = x, False
        outputs, values = None, None
        if parts & POLICY:
            outputs = np.empty((len(x), self.num_outputs), np.float32)
        if parts & VALUE:
            values = np.empty(len(x), np.float32)
        self._run(tape.compiled, x, outputs, values)
        return outputs, values, tape

    def _run(self, taped: CompiledPass, x: Array, outputs: Array | None, values: Array | None) -> None:
        assert x.shape[1] == self.num_features
        self.kernel.forward(
            self._net_address,
            self._params_address,
            taped.address,
            address(x),
            _address_or_none(outputs),
            _address_or_none(values),
        )

    def _pass(self, rows: int, parts: int) -> CompiledPass:
        """Room for a pass of which no derivative is wanted; it is kept for small batches."""
        kept = self._passes.get((rows, parts))
        if kept is not None:
            return kept
        hidden = [self._empty(1, rows, width) for width in self.hiddens]
        made = CompiledPass.of(rows, parts, hidden, [], 0)
        if len(self._passes) < MOST_PASSES and rows <= 1024:
            self._passes[rows, parts] = made
        return made

    def _empty(self, *shape: int) -> Array:
        """An array that begins with a line of the cache, so that no vector lies in two of them."""
        size = prod(shape)
        room = np.empty(size + LINE, np.float32)
        begin = -(address(room) // 4) % LINE
        return room[begin : begin + size].reshape(shape)

    def _find_slopes(self, tape: MLPTape) -> None:
        """What NumPy's derivatives need beside the activations."""
        if tape.has_slopes:
            return
        for h, slopes in zip(tape.hidden, tape.slopes, strict=True):
            self.activation.slope(h, h, slopes)
        tape.has_slopes = True


def compiled_like(network: MLP) -> CompiledMLP:
    """The same network with the kernel; an OSError says in a sentence why there is none."""
    _, shape, params = network.__reduce__()
    made = CompiledMLP(load_kernel(), *shape)
    made.params[:] = params
    return made


def _plain(array: NDArray[Any]) -> Array:
    """The same numbers as the kernel takes them."""
    return np.ascontiguousarray(array, np.float32)


def _plain_or_none(array: Array | None) -> Array | None:
    return None if array is None else _plain(array)


def _address_or_none(array: Array | None) -> int | None:
    return None if array is None else address(array)
