"""The contract between algorithms and networks: `forward`, `vjp` and `jvp` on one flat parameter vector.

An algorithm works in output space: it computes, in closed form, the gradient of its objective with respect to what the
network put out, and the network pulls that back to its parameters. Both backends (the NumPy MLP in `mlp.py`, any
PyTorch module in `torch_network.py`) keep this contract and pass the same tests.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Inputs = tuple[NDArray[Any], ...]
"""Encoded observations, batch first: the feature vector `[B, D]` if there is one, then each image, raw.

For a network with memory, rows are sequences one after another. What was before each row follows (`[B, P]`, see
`PreviousStep`), then the state at the beginning of each sequence, each part `[S, ...]`, and the lengths `[S]`, int64.
"""


class Network(Protocol):
    """A policy head `[B, K]` and a value head `[B]` over one flat float32 parameter vector `[P]`."""

    params: Array  # [P]; live: the network uses what is written into it (call `sync` afterwards)
    value_params: NDArray[np.bool_]  # [P], the parameters that values depend on and outputs do not
    num_outputs: int  # K
    initial_state: Inputs  # of one environment's memory, each [...], float32; () without memory

    def sync(self) -> None:
        """Tell the network that `params` was written (a network on a GPU copies it over; others do nothing)."""

    def act(self, inputs: Inputs) -> Array:
        """Outputs `[B, K]` alone, nothing kept for derivatives. Valid until the next call; fast for small B."""

    def act_with(self, inputs: Inputs, params: Array) -> Array:
        """Outputs `[B, K]` of networks that differ in their parameters `[B, P]`, one for each row of the inputs.

        A row depends on nothing but its own inputs and parameters, to the last bit.
        """

    def values(self, inputs: Inputs) -> Array:
        """Values `[B]` alone."""

    def step(self, inputs: Inputs, state: Inputs) -> tuple[Array, Inputs]:
        """Outputs `[B, K]` for one step of B environments, and their states after it, each part `[B, ...]`.

        The inputs are without states and lengths here.
        """

    def forward(self, inputs: Inputs) -> tuple[Array, Array, Any]:
        """Outputs `[B, K]`, values `[B]`, and a tape for `vjp` and `jvp`. Valid until the next call of its kind."""

    def forward_policy(self, inputs: Inputs) -> tuple[Array, Any]:
        """Outputs `[B, K]` and a tape for their derivatives alone. Valid until the next call of its kind."""

    def forward_value(self, inputs: Inputs) -> tuple[Array, Any]:
        """Values `[B]` and a tape that reaches `value_params` alone. Valid until the next call of its kind."""

    def vjp(self, tape: Any, d_outputs: Array | None, d_values: Array | None, again: bool = False) -> Array:
        """The gradient `[P]` of `sum(d_outputs * outputs) + sum(d_values * values)`. Valid until the next call.

        What the tape was not made for is None. Only with `again` may the same tape be asked once more.
        """

    def forward_inputs(self, inputs: Inputs) -> tuple[Array, Any]:
        """Outputs `[B, K]` and a tape for `vjp_inputs` alone. Valid until the next call of its kind."""

    def vjp_inputs(self, tape: Any, d_outputs: Array) -> Array:
        """The gradient `[B, D]` of `sum(d_outputs * outputs)` by the feature vector, the first part of the inputs.

        A tape serves one call. Rows in which `d_outputs` is zero are zero, and may cost nothing.
        """

    def jvp(self, tape: Any, tangent: Array) -> Array:
        """How outputs `[B, K]` move when the parameters move along `tangent` `[P]`; the tape stays as it is."""

    def named_params(self) -> dict[str, Array]:
        """Each parameter by name, as a view into `params`."""

    def summary(self) -> str:
        """A table of layers, shapes and parameter counts."""
