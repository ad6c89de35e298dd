"""Action masks, applied to what a network puts out.

What a mask rules out gets an output so low that a softmax of it is exactly 0 and that it is never the largest, and yet
finite, so that no log-probability, entropy, KL or derivative is anything but a number. Masks come with the
observations, as the last part of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.masks import MaskSpec
from shoal.envs.spaces import ActionSpec
from shoal.models.network import Array, Inputs, Network

LEAST = np.float32(-1e30)


@dataclass(frozen=True)
class MaskedTape:
    """A network's tape, and what its outputs were masked with."""

    inner: Any
    mask: NDArray[np.bool_]


class MaskedNetwork:
    """Keeps the `Network` contract over another network: outputs that its mask rules out are `LEAST`, constants."""

    def __init__(self, network: Network, columns: NDArray[np.int64], place: int = -1) -> None:
        self.network = network
        self.initial_state = network.initial_state
        self.params, self.value_params, self.num_outputs = network.params, network.value_params, network.num_outputs
        self._columns = columns  # [M], the outputs that the mask's flags are about
        self._place = place  # of the mask among the inputs
        self._all = np.array_equal(columns, np.arange(network.num_outputs))

    def sync(self) -> None:
        """See `Network`."""
        self.network.sync()

    def act(self, inputs: Inputs) -> Array:
        """See `Network`."""
        return self._masked(self.network.act(inputs), inputs[self._place], LEAST)

    def act_with(self, inputs: Inputs, params: Array) -> Array:
        """See `Network`."""
        return self._masked(self.network.act_with(inputs, params), inputs[self._place], LEAST)

    def values(self, inputs: Inputs) -> Array:
        """See `Network`."""
        return self.network.values(inputs)

    def step(self, inputs: Inputs, state: Inputs) -> tuple[Array, Inputs]:
        """See `Network`."""
        outputs, after = self.network.step(inputs, state)
        return self._masked(outputs, inputs[self._place], LEAST), after

    def forward(self, inputs: Inputs) -> tuple[Array, Array, MaskedTape]:
        """See `Network`."""
        outputs, values, tape = self.network.forward(inputs)
        return self._masked(outputs, inputs[self._place], LEAST), values, MaskedTape(tape, inputs[self._place])

    def forward_policy(self, inputs: Inputs) -> tuple[Array, MaskedTape]:
        """See `Network`."""
        outputs, tape = self.network.forward_policy(inputs)
        return self._masked(outputs, inputs[self._place], LEAST), MaskedTape(tape, inputs[self._place])

    def forward_value(self, inputs: Inputs) -> tuple[Array, MaskedTape]:
        """See `Network`."""
        values, tape = self.network.forward_value(inputs)
        return values, MaskedTape(tape, inputs[self._place])

    def vjp(self, tape: MaskedTape, d_outputs: Array | None, d_values: Array | None, again: bool = False) -> Array:
        """See `Network`."""
        if d_outputs is not None:
            d_outputs = self._masked(d_outputs, tape.mask, np.float32(0))
        return self.network.vjp(tape.inner, d_outputs, d_values, again)

    def forward_inputs(self, inputs: Inputs) -> tuple[Array, MaskedTape]:
        """See `Network`."""
        outputs, tape = self.network.forward_inputs(inputs)
        return self._masked(outputs, inputs[self._place], LEAST), MaskedTape(tape, inputs[self._place])

    def vjp_inputs(self, tape: MaskedTape, d_outputs: Array) -> Array:
        """See `Network`."""
        return self.network.vjp_inputs(tape.inner, self._masked(d_outputs, tape.mask, np.float32(0)))

    def jvp(self, tape: MaskedTape, tangent: Array) -> Array:
        """See `Network`."""
        return self._masked(self.network.jvp(tape.inner, tangent), tape.mask, np.float32(0))

    def named_params(self) -> dict[str, Array]:
        """See `Network`."""
        return self.network.named_params()

    def summary(self) -> str:
        """See `Network`."""
        return self.network.summary()

    def _masked(self, outputs: Array, mask: NDArray[np.bool_], value: np.float32) -> Array:
        """A copy (the network may still need its own), with `value` where the mask rules an output out."""
        if self._all:
            return np.where(mask, outputs, value)
        out = outputs.copy()
        out[:, self._columns] = np.where(mask, outputs[:, self._columns], value)
        return out


def masked_outputs(mask: MaskSpec, actions: ActionSpec) -> NDArray[np.int64]:
    """Which outputs of a network the flags of a mask are about, `[M]`."""
    begins: dict[int, int] = {}  # of an action's column, the output of its first value
    offset = 0
    for leaf in actions.leaves:
        for number, count in enumerate(leaf.choices):
            begins[leaf.columns.start + number] = offset
            offset += count
        offset += {"categorical": 0, "bernoulli": 1, "gaussian": 2}[leaf.kind] * leaf.size
    return np.concatenate([np.arange(begins[column], begins[column] + count) for column, count in mask.choices])


def allowed_of(outputs: Array) -> NDArray[np.bool_]:
    """Which of the outputs no mask has ruled out."""
    return np.asarray(outputs > LEAST)
